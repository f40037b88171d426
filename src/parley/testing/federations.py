"""Local federations for tests: services that start in a moment, and every message between them in sight."""

import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from parley.local import LocalFederation
from parley.testing.fork_server import shared_fork_server
from parley.testing.relay import Relay

KEY = bytes(range(32))
"""Every holder's noise key, the same in every federation that is compared; a test's data are nobody's secret."""


class ForkedFederation(LocalFederation):
    """A local federation whose services are forked off a process that has loaded the libraries."""

    def start(self, name: str) -> None:
        """Start one service; one with a wrapper, or a module that changes others first, starts as anywhere."""
        server = None if name in self.wrappers or name in self.modules else shared_fork_server()
        if server is None:
            super().start(name)
            return
        ready = self.directory / f"{name}.ready"
        ready.unlink(missing_ok=True)
        module = self.modules.get(name, self.module_of(name))
        arguments = ["--config", str(self.directory / f"{name}.yaml"), "--ready-file", str(ready)]
        service: Any = server.start(module, arguments, self.directory / f"{name}.log")
        self.processes[name] = service

    def configure(self, name: str, **fields: Any) -> None:
        """Change fields of a service's configuration before it starts."""
        path = self.directory / f"{name}.yaml"
        path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | fields))


class TwinFederation(ForkedFederation):
    """A federation that makes the same runs as another one.

    Noise is a function of (its holder's key, the run's id), and a run's id of its request id. Two of these federations
    give the same run to the same request, so that a disturbed run in one can be compared with its undisturbed twin in
    the other, bit for bit.
    """

    def write(self) -> None:
        """Write the files of a local federation, and the keys that all of them share."""
        super().write()
        for name in (*self.tables, "coordinator"):
            state = self.directory / "state" / name
            state.mkdir(parents=True, exist_ok=True)
            key = state / ("label-noise.key" if name == "coordinator" else "ldp-noise.key")
            if not key.exists():
                key.write_bytes(KEY)
                key.chmod(0o600)

    def run_directory(self, party: str, run_id: str) -> Path:
        """Where a party keeps a run."""
        return self.directory / "state" / party / "runs" / run_id


@dataclass(frozen=True)
class Passed:
    """A message on its way between two services."""

    method: str
    sender: str
    receiver: str
    is_answer: bool
    """Whether it answers a call that the receiver made."""
    data: bytes


Tap = Callable[[Passed], bytes]
"""Sees a message before it is passed on; what it returns is passed on."""


class RelayedFederation(TwinFederation):
    """A federation in which every message between its services passes a relay, and a tap on it."""

    relays: dict[str, "_TappedRelay"]
    tap: Tap = staticmethod(lambda passed: passed.data)

    def write(self) -> None:
        """Write the files of a federation, then put the relays between."""
        super().write()
        certificates, roles = self.directory / "certificates", dict.fromkeys(self.tables, "party")
        self.relays = {
            name: _TappedRelay(self, role, name, self.addresses[name], certificates)
            for name, role in (roles | {"coordinator": "coordinator"}).items()
        }
        self.configure("coordinator", parties={name: {"address": self.relays[name].address} for name in self.tables})
        for name in self.tables:
            line = {"name": "coordinator", "address": self.relays["coordinator"].address}
            self.configure(name, coordinator=line)

    @contextlib.contextmanager
    def tapped(self, tap: Tap) -> Iterator[None]:
        """Let another tap see what passes, for a while."""
        before, self.tap = self.tap, tap
        try:
            yield
        finally:
            self.tap = before

    def stop(self) -> None:
        """Take every process and every relay down."""
        super().stop()
        for relay in getattr(self, "relays", {}).values():
            relay.close()


class _TappedRelay(Relay):
    def __init__(self, federation: RelayedFederation, role: str, name: str, target: str, certificates: Path) -> None:
        self._federation = federation
        super().__init__(role, name, target, certificates)

    async def requests(self, method: str, caller: str, messages: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """What a caller sends passes the tap."""
        async for data in messages:
            yield self._federation.tap(Passed(method, caller, self._name, False, data))

    async def responses(self, method: str, caller: str, messages: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """What the service answers passes the tap."""
        async for data in messages:
            yield self._federation.tap(Passed(method, self._name, caller, True, data))
