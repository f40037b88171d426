"""Flower's older workflow: `start_server` and `start_client` over one gRPC stream for each client.

Runs in a virtualenv of its own. Not like ours: without TLS unless a CA is given (Flower then checks the server only);
FedAvg weighs the average; the deprecated interface.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import flwr
import numpy as np
from flwr.client import NumPyClient, start_client
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerConfig, start_server
from flwr.server.strategy import FedAvg

WARM_UP = 3


class Mirror(NumPyClient):  # type: ignore[misc]
    """Sends back what it gets."""

    def fit(self, parameters: Any, config: Any) -> Any:  # noqa: ARG002 (Flower gives it)
        """One round."""
        return parameters, 1, {}


class Clocked(FedAvg):  # type: ignore[misc]
    """FedAvg that notes when each round was averaged."""

    def __init__(self, clients: int, array: Any) -> None:
        super().__init__(
            fraction_evaluate=0.0,
            min_fit_clients=clients,
            min_available_clients=clients,
            initial_parameters=ndarrays_to_parameters([array]),
        )
        self.times: list[float] = []

    def aggregate_fit(self, *arguments: Any) -> Any:
        """Average, then look at the clock."""
        result = super().aggregate_fit(*arguments)
        self.times.append(time.perf_counter())
        return result


def main() -> None:
    """Serve the clients that this process starts, and print rounds per second."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--address", required=True)
    parser.add_argument("--identity", type=Path, help="ca.pem, certificate.pem and key.pem of the server, for TLS")
    parser.add_argument("--client", action="store_true")
    given = parser.parse_args()
    if given.client:
        ca = (given.identity / "ca.pem").read_bytes() if given.identity else None
        start_client(
            server_address=given.address, client=Mirror().to_client(), insecure=ca is None, root_certificates=ca
        )
        return
    clients = [subprocess.Popen([sys.executable, *sys.argv, "--client"]) for _ in range(given.clients)]
    strategy = Clocked(given.clients, np.zeros(given.bytes // 4, np.float32))
    files = ("ca.pem", "certificate.pem", "key.pem")
    certificates = tuple((given.identity / name).read_bytes() for name in files) if given.identity else None
    config = ServerConfig(num_rounds=given.rounds + WARM_UP)
    try:
        start_server(server_address=given.address, config=config, strategy=strategy, certificates=certificates)
    finally:
        for client in clients:
            client.terminate()
            client.wait()
    seconds = strategy.times[-1] - strategy.times[WARM_UP - 1]
    print(json.dumps({"rounds_per_second": given.rounds / seconds, "version": flwr.__version__}))


if __name__ == "__main__":
    main()
