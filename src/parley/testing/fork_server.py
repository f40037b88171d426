"""Services that start in a moment: one process loads the libraries, and every service is a fork of it.

Most of a service's start is the loading of libraries (three seconds of a core). Tests that start services again and
again would be spent on that. Here one process loads what services use, without a thread or a channel, then forks on
demand; the child becomes a process of its own, reads its configuration and runs the product's module like any other,
and dies by kill -9 like any other. It needs Linux.
"""

import atexit
import contextlib
import functools
import gc
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from parley.spec.algorithms import installed

LIBRARIES = (
    "torch",
    "numpy",
    "scipy.special",
    "sqlalchemy",
    "pydantic",
    "dp_accounting.pld.privacy_loss_distribution",
    "yaml",
    "safetensors.torch",
    "pyarrow.parquet",
    "matplotlib.backends.backend_agg",
)
OURS = (
    "parley.numerics.streams",
    "parley.privacy.ledger",
    "parley.spec.parsing",
    "parley.tables.loading",
    "parley.services.party.__main__",
    "parley.services.coordinator.__main__",
    "parley.services.relay.__main__",
)

_STATUSES: dict[int, int] = {}
"""In the process that forks: exit statuses of services that have ended."""


class ForkServer:
    """The process that forks; closing it leaves nobody behind."""

    def __init__(self) -> None:
        # By its path: its package loads pytest.
        self._process = subprocess.Popen(  # noqa: S603 (this very file)
            [sys.executable, "-P", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"OMP_NUM_THREADS": "1", **os.environ},
            start_new_session=True,
        )
        self._one_at_a_time = threading.Lock()

    def start(self, module: str, arguments: list[str], log: Path) -> "Service":
        """Fork a service that runs a module."""
        order = {
            "module": module,
            "arguments": arguments,
            "log": str(log),
            "directory": str(Path.cwd()),
            "environment": dict(os.environ),
        }
        return Service(self, self._ask(order))

    def status_of(self, pid: int) -> int:
        """The exit status of a service that has ended, or minus the signal that ended it."""
        return self._ask({"status_of": pid})

    def _ask(self, order: Mapping[str, Any]) -> int:
        orders, answers = self._process.stdin, self._process.stdout
        assert orders is not None and answers is not None  # noqa: PT018 (they are pipes)
        with self._one_at_a_time:
            orders.write(json.dumps(order).encode() + b"\n")
            orders.flush()
            return int(answers.readline())

    def close(self) -> None:
        """End the process, and every service that is left."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)


class Service:
    """A forked service, with as much of Popen as a federation uses."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self._server, self.pid = server, pid
        self._handle: int | None = None
        with contextlib.suppress(ProcessLookupError):  # one that could not start is gone already
            self._handle = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """None while it lives, then its exit status."""
        return self._server.status_of(self.pid) if self._ended(0.0) else None

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """kill -9."""
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        """Send a signal; one that is gone gets none."""
        if self._handle is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._handle, number)

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended; returns its exit status."""
        if not self._ended(timeout):
            raise subprocess.TimeoutExpired("service", timeout or 0.0)
        return self._server.status_of(self.pid)

    def _ended(self, seconds: float | None) -> bool:
        if self._handle is None:
            return True
        watch = select.poll()  # select() takes no descriptor above 1023
        watch.register(self._handle, select.POLLIN)
        ended = bool(watch.poll(None if seconds is None else 1000 * seconds))
        if ended:
            os.close(self._handle)
            self._handle = None
        return ended


@functools.cache
def shared_fork_server() -> ForkServer | None:
    """The one fork server of this process, made when it is first asked for; None where the system cannot have one."""
    if not hasattr(os, "pidfd_open"):
        return None
    server = ForkServer()
    atexit.register(server.close)
    return server


def _serve() -> None:
    """Load, then fork for every order on stdin, until it ends."""
    for name in (*LIBRARIES, *OURS):
        __import__(name)
    for algorithm in installed().values():
        algorithm.load("party"), algorithm.load("coordinator")
    gc.collect()
    gc.freeze()  # a collection in a child would copy every page
    signal.signal(signal.SIGCHLD, _reap)
    for line in sys.stdin:
        order = json.loads(line)
        if "status_of" in order:
            answer = _status_of(order["status_of"])
        elif (answer := os.fork()) == 0:
            _become(order)
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()
    os.killpg(0, signal.SIGKILL)  # whoever is left goes too


def _reap(*_: object) -> None:
    """Wait for whoever has ended, so that no zombies stay and their time is counted."""
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            _STATUSES[ended[0]] = os.waitstatus_to_exitcode(ended[1])


def _status_of(pid: int) -> int:
    while pid not in _STATUSES:  # it has ended, so a signal is on its way
        time.sleep(0.001)
    return _STATUSES[pid]


def _become(order: Mapping[str, Any]) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with Path(str(order["log"])).open("ab") as log:
        for number in (1, 2):
            os.dup2(log.fileno(), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(order["directory"])
    sys.path.insert(0, order["directory"])  # as `python -m` does
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.argv = [str(order["module"]), *order["arguments"]]
    status = 1
    try:
        for loaded in (order["module"], f"{order['module']}.__main__"):
            sys.modules.pop(loaded, None)  # it was loaded ahead; runpy would warn
        runpy.run_module(str(order["module"]), run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    finally:
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    _serve()
