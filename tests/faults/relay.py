"""A relay in front of a party that loses, repeats and overtakes single messages between parties.

All calls pass; only messages of `PeerService.Push` meet their fate, which is a function of sender, receiver, step and
of how often the message was sent alone: two runs over the same links have the same trace, whatever the timing.
"""

from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from parley.contracts.peer.v1 import peer_service_pb2 as pb
from parley.testing.relay import Relay as PassingRelay

PUSH = "/parley.peer.v1.PeerService/Push"


@dataclass(frozen=True)
class Fate:
    """What happens to one message."""

    lost: bool = False
    repeated: bool = False
    overtaken: bool = False
    """It arrives after the next message on its link."""


Fates = Callable[..., Fate]
"""(sender, receiver, step, time that it is sent: 0, 1, …) → fate."""


def seeded_fates(seed: int, until: Callable[[int], bool], *, lost: float, repeated: float, overtaken: float) -> Fates:
    """Independent fates of the given rates for the steps that `until` names; the others pass untouched."""

    def fate(sender: str, receiver: str, step: int, time: int = 0) -> Fate:
        if not until(step):
            return Fate()
        chance = np.random.default_rng([seed, step, *sender.encode(), 0, *receiver.encode(), time]).random(3)
        return Fate(bool(chance[0] < lost), bool(chance[1] < repeated), bool(chance[2] < overtaken))

    return fate


class Relay(PassingRelay):
    """In front of party `name`; what its peers push meets its fate."""

    def __init__(self, name: str, target: str, certificates: Path, fates: Fates) -> None:
        self.fates = fates
        self.counts: Counter[str] = Counter()
        """Messages between parties by what happened to them."""
        self._times: Counter[tuple[str, int]] = Counter()
        self.latest_step = -1
        self.cut_off: set[str] = set()
        """Parties whose messages do not get through; everyone else's do."""
        super().__init__("party", name, target, certificates)

    @property
    def pushers(self) -> set[str]:
        """Parties that have a stream to this one."""
        return self.callers(PUSH)

    def cut(self, sender: str) -> None:
        """Let nothing of a party through from now on, and break its streams."""
        self.cut_off.add(sender)
        self.cancel(PUSH, sender)

    def is_cut(self, method: str, caller: str) -> bool:
        """Whether a party was cut off."""
        return method == PUSH and caller in self.cut_off

    def requests(self, method: str, caller: str, messages: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """What peers push meets its fate."""
        return self._weathered(caller, messages) if method == PUSH else messages

    async def _weathered(self, sender: str, requests: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        held: list[bytes] = []
        async for data in requests:
            message = pb.PushRequest.FromString(data)
            if message.WhichOneof("body") != "push_sum":
                yield data
                continue
            step = message.push_sum.step
            fate = self.fates(sender, self._name, step, self._times[sender, step])
            self._times[sender, step] += 1
            self.latest_step = max(self.latest_step, step)
            self.counts["sent"] += 1
            self.counts.update(name for name in ("lost", "repeated", "overtaken") if getattr(fate, name))
            copies = [] if fate.lost else [data] * (2 if fate.repeated else 1)
            due, held = (held, copies) if fate.overtaken else (copies + held, [])
            for each in due:
                yield each
