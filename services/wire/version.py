"""Which version of Parley this is, and which versions of the protocol it speaks.

The protocol's number says what crosses and what it means. It rises when a side of an earlier number would misread
something, not with every release of Parley. A service speaks its own number and the one before, so that organisations
need not upgrade at once: whoever opens a session asks every side, and takes the highest number that all speak.

| protocol | since | what is new |
|---|---|---|
| 1 | 0.1.0 | sums under masks that depend on keys alone; spoken no more |
| 2 | 0.2.0 | masks, keys and signatures depend on what every party was told |
| 3 | 0.2.0 | sides say which protocols they speak, and the chosen one is among what every party signs and masks with |
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from importlib.metadata import version

VERSION = version("parley-fl")
PROTOCOLS: tuple[int, ...] = (2, 3)
"""Spoken here, in order."""
SIGNED_PROTOCOL = 3
"""From this one on, parties sign which protocol they were told."""
_SILENT = {"0.1": 1, "0.2": 2}
"""Versions that do not say which protocol they speak."""


@dataclass(frozen=True)
class Side:
    """One service, and what it speaks."""

    name: str
    version: str
    protocols: tuple[int, ...]

    @classmethod
    def of(cls, name: str, version: str, stated: Collection[int]) -> "Side":
        """A service by what it says of itself; one that says nothing is known by its version."""
        silent = _SILENT.get(".".join(version.split(".")[:2]))
        return cls(name, version, tuple(sorted(stated)) or (() if silent is None else (silent,)))

    @property
    def newest(self) -> int:
        """The highest protocol that it speaks; 0 if nobody knows."""
        return max(self.protocols, default=0)

    def __str__(self) -> str:
        spoken = " and ".join(map(str, self.protocols)) or "of an unknown number"
        return f"{self.name} (Parley {self.version or 'unknown'}) speaks protocol {spoken}"


def common_protocol(sides: Sequence[Side]) -> int:
    """The highest protocol that all sides speak; 0 if there is none."""
    return max(set.intersection(*(set(side.protocols) for side in sides)), default=0)


def mismatch(sides: Sequence[Side]) -> str:
    """Why sides without a common protocol cannot work together, and who has to upgrade."""
    newest = max(side.newest for side in sides)
    ahead = next(side for side in sides if side.newest == newest)
    behind = [side for side in sides if not set(side.protocols) & set(ahead.protocols)]
    behind = behind or [side for side in sides if side.newest < newest]
    names = ", ".join(side.name for side in behind)
    told = "; ".join(map(str, behind))
    return f"no protocol in common: {ahead}; {told}: upgrade {names} to Parley {ahead.version}"
