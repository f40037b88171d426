"""A relay's configuration, read once at the start."""

from pydantic import Field

from parley.services.relay.switchboard import Limits
from parley.services.wire.configuration import FilePath
from parley.spec.section import Section


class RelayConfig(Section):
    """A relay that runs by itself; a coordinator is one for its own federation without this."""

    name: str
    """This relay; must be what its certificate says."""
    listen: str = "127.0.0.1:0"
    """host:port to serve on; port 0 takes a free one."""
    identity: FilePath
    """Directory with the certificate, the key and the authority."""
    parties: tuple[str, ...] | None = None
    """Parties that may register, by name; every party of the authority if left out."""
    connections: int = Field(default=1024, ge=1, le=65536)
    """Most connections to one party at once."""
    connections_per_caller: int = Field(default=256, ge=1, le=65536)
    """Most connections to one party by one caller."""

    @property
    def limits(self) -> Limits:
        """The same for the switchboard."""
        return Limits(self.connections, self.connections_per_caller)
