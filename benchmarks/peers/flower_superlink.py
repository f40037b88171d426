"""Flower's current workflow: SuperLink, one SuperNode for each client, and an app that `flwr run` submits.

Runs in a virtualenv of its own, with Flower's defaults: every message starts a process for the client's app, and nodes
ask for work at intervals. Not like ours: without TLS; FedAvg weighs the average; state in memory.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import flwr

PATIENCE_SECONDS = 900.0
PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "exchange"
version = "1.0.0"
license = "Apache-2.0"
dependencies = ["flwr"]
[tool.hatch.build.targets.wheel]
packages = ["."]
[tool.flwr.app]
publisher = "bench"
[tool.flwr.app.components]
serverapp = "exchange.app:server"
clientapp = "exchange.app:client"
[tool.flwr.app.config]
size = 1024
rounds = 2
clients = 4
times = ""
"""


class ExchangeFailed(RuntimeError):
    """The app did not come to its end."""


def main() -> None:
    """Start SuperLink, SuperNodes and the app, and print rounds per second."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--bytes", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--ports", type=int, nargs="+", required=True, help="one for SuperLink, one for each SuperNode")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        seconds = _measure(Path(scratch), given)
    print(json.dumps({"rounds_per_second": given.rounds / seconds, "version": flwr.__version__}))


def _measure(scratch: Path, given: argparse.Namespace) -> float:
    app, home, times = scratch / "app", scratch / "home", scratch / "times.json"
    (app / "exchange").mkdir(parents=True)
    home.mkdir()
    (app / "pyproject.toml").write_text(PROJECT)
    (app / "exchange" / "__init__.py").write_text("")
    shutil.copy(Path(__file__).with_name("flower_app.py"), app / "exchange" / "app.py")
    link, *nodes = given.ports
    (home / "config.toml").write_text(f'[superlink.bench]\naddress = "127.0.0.1:{link}"\ninsecure = true\n')
    binaries = Path(sys.executable).parent
    environment = {
        **os.environ,
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
    }
    commands = [["flower-superlink", "--insecure", "--port", str(link), "--disable-runtime-dependency-installation"]]
    commands += [
        ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{link}", "--port", str(port)] for port in nodes
    ]
    processes = []
    log = (scratch / "log").open("w")
    try:
        for command in commands:
            processes.append(
                subprocess.Popen(
                    [str(binaries / command[0]), *command[1:]], env=environment, stdout=log, stderr=log, cwd=scratch
                )
            )
            time.sleep(8 if len(processes) == 1 else 1)  # SuperNodes give up on a SuperLink that is not there yet
        overrides = f"size={given.bytes} rounds={given.rounds} clients={given.clients} times='{times}'"
        submit = [str(binaries / "flwr"), "run", str(app), "bench", "--run-config", overrides]
        if subprocess.run(submit, env=environment, stdout=log, stderr=log).returncode:
            raise ExchangeFailed((scratch / "log").read_text()[-3000:])
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not times.exists():
            if time.monotonic() > deadline or processes[0].poll() is not None:
                raise ExchangeFailed((scratch / "log").read_text()[-3000:])
            time.sleep(0.5)
        noted = json.loads(times.read_text())
        return float(noted[-1] - noted[0])
    finally:
        for process in processes:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    main()
