"""Which versions of the protocol this party takes part in."""

from parley.services.wire.version import PROTOCOLS, VERSION, Side, mismatch


class VersionMismatch(RuntimeError):
    """Coordinator and party speak no common protocol."""


def protocol_told(version: str, protocol: int) -> int:
    """The protocol that a coordinator opens a session in; one that names none speaks that of its version."""
    return protocol or Side.of("the coordinator", version, ()).newest


def require_spoken(party: str, version: str, protocol: int) -> int:
    """The protocol of a session, if this party speaks it.

    Raises:
        VersionMismatch: with who speaks what, and who has to upgrade.
    """
    told = protocol_told(version, protocol)
    if told not in PROTOCOLS:
        coordinator = Side.of("the coordinator", version, (told,) if told else ())
        raise VersionMismatch(mismatch([Side(party, VERSION, PROTOCOLS), coordinator]))
    return told
