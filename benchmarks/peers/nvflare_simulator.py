"""NVIDIA FLARE's simulator: FedAvg, as a job with one process for each client.

Runs in a virtualenv of its own, with FLARE's defaults. Not like ours: without TLS, on one machine only; a client is a
script behind FLARE's client interface.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import nvflare
import nvflare.client as flare
from nvflare.app_common.abstract.fl_model import FLModel
from nvflare.app_common.workflows.base_fedavg import BaseFedAvg
from nvflare.job_config.api import FedJob
from nvflare.job_config.script_runner import FrameworkType, ScriptRunner

WARM_UP = 1


class Clocked(BaseFedAvg):  # type: ignore[misc]
    """FedAvg that notes when each round was averaged."""

    def __init__(self, size: int, num_clients: int, num_rounds: int, times: str) -> None:
        super().__init__(num_clients=num_clients, num_rounds=num_rounds)
        self.size, self.times = size, times

    def run(self) -> None:
        """Send, average, look at the clock."""
        model, times = FLModel(params={"array": np.zeros(self.size // 4, np.float32)}), []
        clients = self.sample_clients(self.num_clients)
        for number in range(self.num_rounds):
            model.current_round, model.total_rounds = number, self.num_rounds
            results = self.send_model_and_wait(targets=clients, data=model)
            model = self.update_model(model, self.aggregate(results))
            times.append(time.time())
        Path(self.times).write_text(json.dumps(times))


def _mirror() -> None:
    flare.init()
    while flare.is_running():
        model = flare.receive()
        flare.send(FLModel(params=model.params, meta={"NUM_STEPS_CURRENT_ROUND": 1}))


def main() -> None:
    """Simulate, and print rounds per second."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--client", action="store_true")
    given = parser.parse_args()
    if given.client:
        _mirror()
        return
    with tempfile.TemporaryDirectory() as scratch:
        noted = _simulate(Path(scratch), given)
    seconds = noted[-1] - noted[WARM_UP - 1]
    print(json.dumps({"rounds_per_second": given.rounds / seconds, "version": nvflare.__version__}))


def _simulate(scratch: Path, given: Any) -> list[float]:
    times = scratch / "times.json"
    sys.path.insert(0, str(Path(__file__).parent))
    from nvflare_simulator import Clocked as Named  # FLARE finds a controller by the name of its module

    job = FedJob(name="exchange", min_clients=given.clients)
    job.to_server(Named(given.bytes, given.clients, given.rounds + WARM_UP, str(times)))
    for number in range(given.clients):
        job.to(
            ScriptRunner(script=__file__, script_args="--client", framework=FrameworkType.NUMPY), f"site-{number + 1}"
        )
    job.simulator_run(str(scratch / "work"), threads=given.clients)
    return [float(one) for one in json.loads(times.read_text())]


if __name__ == "__main__":
    main()
