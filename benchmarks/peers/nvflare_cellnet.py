"""NVIDIA FLARE's messaging layer, CellNet: one server cell broadcasts a request, every client cell replies.

Runs in a virtualenv of its own. Not like ours: without TLS, and below FLARE's workflows; arrays travel as bytes, which
spares them FLARE's serialiser.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
import time

import numpy as np
import nvflare
from nvflare.fuel.f3.cellnet.cell import Cell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, ReturnCode
from nvflare.fuel.f3.cellnet.utils import new_cell_message
from nvflare.fuel.f3.message import Message

CHANNEL, TOPIC, WARM_UP, PATIENCE_SECONDS = "bench", "exchange", 3, 300.0


class ExchangeFailed(RuntimeError):
    """A client did not reply as it should."""


def main() -> None:
    """Broadcast to the clients that this process starts, and print rounds per second."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--address", required=True)
    parser.add_argument("--client", default="")
    given = parser.parse_args()
    url = f"grpc://{given.address}"
    if given.client:
        _mirror(given.client, url)
        return
    names = [f"site-{number}" for number in range(given.clients)]
    server = Cell("server", url, secure=False, credentials={})
    server.start()
    clients = [subprocess.Popen([sys.executable, *sys.argv, "--client", name]) for name in names]
    try:
        seconds = _rounds(server, names, np.zeros(given.bytes // 4, np.float32), given.rounds)
    finally:
        for client in clients:
            client.terminate()
            client.wait()
    print(json.dumps({"rounds_per_second": given.rounds / seconds, "version": nvflare.__version__}), flush=True)


def _mirror(name: str, url: str) -> None:
    cell = Cell(name, url, secure=False, credentials={})

    def reply(request: Message) -> Message:
        return new_cell_message({MessageHeaderKey.RETURN_CODE: ReturnCode.OK}, request.payload)

    cell.register_request_cb(channel=CHANNEL, topic=TOPIC, cb=reply)
    cell.start()
    threading.Event().wait()


def _rounds(server: Cell, names: list[str], array: np.ndarray, rounds: int) -> float:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not all(server.is_cell_connected(name) for name in names):
        if time.monotonic() > deadline:
            raise ExchangeFailed("the clients did not connect")
        time.sleep(0.1)
    time.sleep(1.0)
    started = 0.0
    for number in range(rounds + WARM_UP):
        if number == WARM_UP:
            started = time.perf_counter()
        replies = server.broadcast_request(
            channel=CHANNEL,
            topic=TOPIC,
            targets=names,
            request=new_cell_message({}, array.tobytes()),
            timeout=PATIENCE_SECONDS,
        )
        codes = {name: reply.get_header(MessageHeaderKey.RETURN_CODE) for name, reply in replies.items()}
        if set(codes.values()) != {ReturnCode.OK}:
            raise ExchangeFailed(f"replies were {codes}")
        arrays = [np.frombuffer(reply.payload, np.float32) for reply in replies.values()]
        array = np.sum(arrays, axis=0) / np.float32(len(names))
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
    os._exit(0)  # FLARE's own threads would keep the process for a while
