"""Channels to other services: straight to where they listen, or through the relay that they are behind."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

import grpc

from parley.services.wire.relay_line import RelayLine, RelayPlace, relay_in
from parley.services.wire.transport import open_channel

SOCKETS = "sockets"
"""Folder of a service's state for sockets that stand for parties behind relays."""
SERVICE_SOCKET = "service"
"""In that folder: the socket of a party that takes connections through a relay only."""


class RelayUnknown(ConnectionError):
    """A party is behind a relay whose address is not known here."""


class Line(Protocol):
    """A way to the parties behind one relay."""

    def endpoint(self, party: str) -> str:
        """Where to dial, on this machine, to reach a party."""

    async def close(self) -> None:
        """End every connection."""


class Routes:
    """Dials services by the addresses that configurations and coordinators give."""

    def __init__(
        self,
        identity: Path,
        sockets: Path,
        *,
        known: Iterable[RelayPlace] = (),
        lines: Mapping[tuple[str, str], Line] | None = None,
    ) -> None:
        """`known` are relays whose addresses the configuration has; `lines` stand already, by role and name."""
        self._identity, self._sockets = identity, sockets
        self._known = {(place.role, place.name): place for place in known}
        self._lines: dict[tuple[str, str], Line] = dict(lines or {})

    def channel(self, address: str, role: str, name: str, *, own_connection: bool = False) -> grpc.aio.Channel:
        """A channel to `role` `name` at an address; the certificate must name it, whatever lies between.

        Raises:
            RelayUnknown: if the address is a relay's, and does not say where that is.
        """
        relay = relay_in(address)
        target = address if relay is None else self.line(relay).endpoint(name)
        return open_channel(target, self._identity, role, name, own_connection=own_connection)

    def line(self, relay: RelayPlace) -> Line:
        """The line to a relay; there is one to each."""
        key = relay.role, relay.name
        place = self._known.get(key, relay)
        if key not in self._lines:
            if not place.address:
                raise RelayUnknown(
                    f"it is behind the relay of {place.role} {place.name}, whose address is not known here: name it "
                    "as `coordinator` in the configuration"
                )
            self._lines[key] = RelayLine(place, self._identity, self._sockets)
        return self._lines[key]

    async def close(self) -> None:
        """End every line."""
        for line in self._lines.values():
            await line.close()
