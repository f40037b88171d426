"""Entity alignment at the coordinator: the leader of `parley.privacy.psi`, with the ids of its label table.

Everything here works on released values and on the coordinator's own ids. What the parties' tables hold for an
id is added up; a sum of 0 means that all of them have it, any other is noise (see `parley.privacy.psi`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from parley.privacy.psi import Leader, Points, Tags
from parley.privacy.psi_curve import POINT_BYTES
from parley.privacy.psi_table import VALUE_BYTES, Words, slots_for
from parley.privacy.psi_workers import Workers


class AnswerUnusable(ValueError):
    """A party's answer does not have the size that follows from its earlier messages."""


@dataclass
class Answer:
    """What one party sends back, as it arrives: the coordinator's ids without the blinding, and its table."""

    ids: int
    """Ids of the party."""
    expected: int
    """Ids of the coordinator."""
    evaluated: bytearray = field(default_factory=bytearray, repr=False)
    slots: bytearray = field(default_factory=bytearray, repr=False)
    salt: bytes = b""

    @property
    def wants_points(self) -> bool:
        """Whether evaluated ids are due."""
        return len(self.evaluated) < POINT_BYTES * self.expected

    @property
    def wants_slots(self) -> bool:
        """Whether parts of the table are due."""
        return len(self.slots) < VALUE_BYTES * slots_for(self.ids)

    def take_points(self, leader: Leader, points: bytes, workers: Workers) -> int:
        """Take the blinding off a batch; returns how many ids it held."""
        if not points or len(self.evaluated) + len(points) > POINT_BYTES * self.expected:
            raise AnswerUnusable("evaluated ids are not as many as were sent")
        self.evaluated += leader.unblinded(points, workers)
        return len(points) // POINT_BYTES

    def take_slots(self, salt: bytes, slots: bytes) -> None:
        """Keep a part of the table."""
        if not slots or len(self.slots) + len(slots) > VALUE_BYTES * slots_for(self.ids):
            raise AnswerUnusable("the table does not have the size that follows from the party's ids")
        self.salt, self.slots = salt, self.slots + slots


class Alignment:
    """The coordinator's side of one alignment."""

    def __init__(self, ids: Sequence[str], alignment_id: str, sizes: Mapping[str, int]) -> None:
        """`sizes` are the parties' numbers of ids, in the order of parties."""
        self.leader = Leader(ids, alignment_id.encode())
        self.answers = {party: Answer(size, len(ids)) for party, size in sizes.items()}

    def blinded(self, workers: Workers, first: int, last: int) -> Points:
        """Some of the coordinator's ids for every party."""
        return self.leader.blinded(workers, first, last)

    def matches(self) -> dict[str, Tags]:
        """The intersection, as each party alone can read it."""
        sums = [self._sums(answer) for answer in self.answers.values()]
        return dict(zip(self.answers, self.leader.match(sums), strict=True))

    def _sums(self, answer: Answer) -> Words:
        """What one party adds; what it sent is let go then."""
        found = self.leader.sums(answer.evaluated, answer.salt, answer.slots, answer.ids)
        answer.evaluated, answer.slots = bytearray(), bytearray()
        return found

    def common(self, shares: Mapping[str, bytes]) -> list[str]:
        """The intersection, once every party has given up its share of the shuffle."""
        return self.leader.common([shares[party] for party in self.answers])
