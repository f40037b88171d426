"""The app that `flower_superlink` submits: clients send back the array that they get, FedAvg averages."""

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

client = ClientApp()
server = ServerApp()


@client.train()  # type: ignore[untyped-decorator]
def mirror(message: Message, _: Context) -> Message:
    """Send the array back."""
    content = RecordDict({"arrays": message.content["arrays"], "metrics": MetricRecord({"num-examples": 1})})
    return Message(content=content, reply_to=message)


@server.main()  # type: ignore[untyped-decorator]
def average(grid: Grid, context: Context) -> None:
    """One round to warm up, then those that count; the clock is noted after each."""
    config, times = context.run_config, []
    array = np.zeros(int(config["size"]) // 4, np.float32)
    clients = int(config["clients"])
    strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients)

    def note(*_: object) -> None:
        times.append(time.time())

    strategy.start(
        grid=grid, initial_arrays=ArrayRecord([array]), num_rounds=int(config["rounds"]) + 1, evaluate_fn=note
    )
    scratch = Path(str(config["times"])).with_suffix(".partial")
    scratch.write_text(json.dumps(times[1:]))  # the first is before any round
    scratch.replace(str(config["times"]))
