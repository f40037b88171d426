"""A federation on one machine: real processes, real sockets, certificates of its own."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from parley.client import Federation, connect
from parley.services.coordinator.config import ALL_PERMISSIONS
from parley.services.wire.certificates import create_authority, issue
from parley.spec.algorithms import installed
from parley.tables.places import is_store

READY_SECONDS = 180.0
STOP_SECONDS = 10.0
PORTS = range(20_000, 32_768)
"""Where services listen: below the ports that systems give to outgoing connections, which would take one any moment."""


class ProcessEnded(RuntimeError):
    """A service of the local federation ended before it was ready."""


@dataclass
class LocalFederation:
    """A coordinator and its parties as local processes; `with` starts them and takes them down."""

    directory: Path
    """Where certificates, configuration, state and logs go."""
    tables: Mapping[str, Mapping[str, Mapping[str, Any]]]
    """For each party its tables: name → fields of the party's configuration (at least `path` or `url`)."""
    labels: Mapping[str, Mapping[str, Any]]
    """The coordinator's label tables: name → fields (at least `path` or `url`)."""
    policy: Mapping[str, Any] = field(default_factory=dict)
    """Fields of every party's policy."""
    policies: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Fields of single parties' policies, by name."""
    coordinator_options: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of the coordinator's configuration."""
    party_options: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of every party's configuration."""
    outbound: Collection[str] = ()
    """Parties that listen nowhere: they dial the coordinator, or the relay where there is one."""
    relay_options: Mapping[str, Any] | None = None
    """Runs a relay by itself, `relay`, with these further fields of its configuration; None runs none."""
    wrappers: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Commands that single services are started by, by name, such as `env NAME=value`."""
    modules: Mapping[str, str] = field(default_factory=dict)
    """Python modules to run in place of a service's own, by name."""
    ready_seconds: float = READY_SECONDS
    """How long a service may take to come up."""
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)

    def __enter__(self) -> Self:
        self.write()
        try:
            for name in self.services:
                self.start(name)
            for name in self.processes:
                self.wait_until_ready(name)
        except BaseException:
            self.stop()
            raise
        return self

    @property
    def services(self) -> list[str]:
        """Every service, in the order in which they start."""
        return [*self.tables, "coordinator", *(["relay"] if self.relay_options is not None else [])]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def write(self) -> None:
        """Make certificates and configuration files."""
        self.directory.mkdir(parents=True, exist_ok=True)
        names = dict.fromkeys(self.tables, "party") | {"coordinator": "coordinator", "client": "client"}
        if self.relay_options is not None:
            names["relay"] = "relay"
        authority = self.directory / "certificates" / "authority"
        if not (authority / "ca.pem").exists():
            create_authority(authority, "local-authority")
            for name, role in names.items():
                issue(authority, name, role, ["localhost", "127.0.0.1"])
        self.addresses = {name: f"127.0.0.1:{port}" for name, port in zip(names, _free_ports(len(names)), strict=True)}
        for name, tables in self.tables.items():
            self._write(name, self._party(name, tables))
        if self.relay_options is not None:
            relay = {name: value for name, value in self._service("relay").items() if name != "state"}
            self._write("relay", relay | dict(self.relay_options))
        parties = {name: self._way_to(name) for name in self.tables}
        self._write(
            "coordinator",
            self._service("coordinator")
            | {"parties": parties, "labels": _absolute(self.labels), "clients": {"client": list(ALL_PERMISSIONS)}}
            | dict(self.coordinator_options),
        )

    def start(self, name: str) -> None:
        """Start one service."""
        ready = self.directory / f"{name}.ready"
        ready.unlink(missing_ok=True)
        module = self.modules.get(name, self.module_of(name))
        command = [
            *self.wrappers.get(name, ()),
            sys.executable,
            "-m",
            module,
            "--config",
            str(self.directory / f"{name}.yaml"),
        ]
        environment = {"OMP_NUM_THREADS": "1", **os.environ}
        # An interrupt in the middle would leave a process that nobody knows of.
        with (self.directory / f"{name}.log").open("ab") as log, _uninterrupted():
            self.processes[name] = subprocess.Popen(  # noqa: S603 (our own modules)
                [*command, "--ready-file", str(ready), "--parent", str(os.getpid())],
                stdout=log,
                stderr=log,
                env=environment,
            )

    @staticmethod
    def module_of(name: str) -> str:
        """The module that runs a service."""
        return f"parley.services.{name if name in ('coordinator', 'relay') else 'party'}"

    def wait_until_ready(self, name: str) -> None:
        """Wait until a service listens."""
        deadline = time.monotonic() + self.ready_seconds
        while not (self.directory / f"{name}.ready").exists():
            if self.processes[name].poll() is not None:
                lines = (self.directory / f"{name}.log").read_text().strip().splitlines()
                raise ProcessEnded(f"{name} ended at its start: {lines[-1] if lines else 'no log'}")
            if time.monotonic() > deadline:
                raise ProcessEnded(f"{name} was not ready within {self.ready_seconds:g} s; see {name}.log")
            time.sleep(0.05)

    def kill(self, name: str) -> None:
        """Stop a service at once, as a crash would."""
        self.processes[name].kill()
        self.processes[name].wait()

    def restart(self, name: str) -> None:
        """Start a service again at the same address."""
        self.start(name)
        self.wait_until_ready(name)

    def connect(self) -> Federation:
        """A client of this federation."""
        return connect(self.addresses["coordinator"], self.identity("client"))

    def identity(self, name: str) -> Path:
        """The certificate directory of a service or client."""
        return self.directory / "certificates" / name

    def stop(self) -> None:
        """Take every process down."""
        for process in self.processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _way_to(self, name: str) -> dict[str, Any]:
        """How the coordinator reaches a party."""
        if name not in self.outbound:
            return {"address": self.addresses[name]}
        if self.relay_options is None:
            return {"connects": True}
        return {"relay": {"name": "relay", "address": self.addresses["relay"]}}

    def _dialling(self, service: dict[str, Any]) -> dict[str, Any]:
        """The fields of a party that dials out."""
        relay = {} if self.relay_options is None else {"relay": "relay"}
        fields = {name: value for name, value in service.items() if name != "listen"}
        return fields | relay | {"connect": self.addresses["relay" if relay else "coordinator"]}

    def _service(self, name: str) -> dict[str, Any]:
        return {
            "name": name,
            "listen": self.addresses[name],
            "identity": f"certificates/{name}",
            "state": f"state/{name}",
        }

    def _party(self, name: str, tables: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        service = self._service(name)
        return (self._dialling(service) if name in self.outbound else service) | {
            "coordinator": {"name": "coordinator", "address": self.addresses["coordinator"]},
            "tables": _absolute(tables),
            "policy": {
                "coordinators": ["coordinator"],
                "algorithms": _usual_algorithms(),
                # Whoever runs all parties sees all tables anyway, and tries the same rows with this one and that.
                "minimum_parties": min(2, len(self.tables)),
                "differencing": "allow",
                "sums_per_row": "unbounded",
                "mixing": "allow",
                **self.policy,
                **self.policies.get(name, {}),
            },
            **self.party_options,
        }

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        (self.directory / f"{name}.yaml").write_text(yaml.safe_dump(dict(content), sort_keys=False))


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Let SIGINT and SIGTERM wait until the end; they strike the main thread alone, and a child inherits nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    numbers = [number for number in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(number) is not None]
    before = {number: signal.signal(number, lambda sent, _: came.append(sent)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for sent in came:
            signal.raise_signal(sent)


def _absolute(tables: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    return {
        name: {**fields, "path": _resolved(str(fields["path"]))} if "path" in fields else dict(fields)
        for name, fields in tables.items()
    }


def _resolved(path: str) -> str:
    return path if is_store(path) else str(Path(path).resolve())


def _free_ports(count: int) -> list[int]:
    """Ports that are free now; all are held open until the last is known, so that none is given twice."""
    ports: list[int] = []
    with contextlib.ExitStack() as held:
        for port in random.sample(PORTS, len(PORTS)):
            if len(ports) == count:
                break
            with contextlib.suppress(OSError):  # taken: another one will do
                held.enter_context(socket.socket()).bind(("127.0.0.1", port))
                ports.append(port)
    return ports


def _usual_algorithms() -> list[str]:
    """Every installed algorithm but those that send values in the clear: these a policy has to name."""
    return [name for name, algorithm in installed().items() if not algorithm.settings.sends_clear_values]
