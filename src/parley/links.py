"""How long a run's messages take over a link, such as 100mbit,20ms."""

import re
from dataclasses import dataclass

_RATES = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
_LINK = re.compile(r"(\d+(?:\.\d+)?)(kbit|mbit|gbit),(\d+(?:\.\d+)?)ms")


@dataclass(frozen=True)
class Forecast:
    """What a run sends if every iteration is made; one that stops earlier sends less."""

    rounds: int
    sent_bytes: int
    """To all parties together."""
    received_bytes: int
    """From all parties together."""
    peer_bytes: int = 0
    """What the parties send each other, past the coordinator's link."""

    @property
    def link_bytes(self) -> int:
        """Both ways over the coordinator's link."""
        return self.sent_bytes + self.received_bytes

    @property
    def bytes(self) -> int:
        """All together, as a run counts them."""
        return self.link_bytes + self.peer_bytes


@dataclass(frozen=True)
class Link:
    """The coordinator's link: everything crosses it, and a round goes down before its answers come up."""

    bits_per_second: float
    round_trip_seconds: float

    @classmethod
    def parse(cls, text: str) -> "Link":
        """A rate and a round-trip time, such as 100mbit,20ms."""
        found = _LINK.fullmatch(text.strip().lower().replace(" ", ""))
        if found is None or not float(found[1]):
            raise ValueError(f"{text!r} is no link: write a rate and a round-trip time, such as 100mbit,20ms")
        return cls(float(found[1]) * _RATES[found[2]], float(found[3]) / 1000)

    def seconds(self, forecast: Forecast) -> float:
        """How long the messages take, without what the parties compute."""
        return 8 * forecast.link_bytes / self.bits_per_second + forecast.rounds * self.round_trip_seconds
