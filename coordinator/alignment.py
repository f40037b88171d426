"""Entity alignment at the coordinator: the leader of `parley.privacy.psi`, with the ids of its label table.

Everything here works on released values and on the coordinator's own ids. What the parties' tables hold for an
id is added up; a sum of 0 means that all of them have it, any other is noise (see `parley.privacy.psi`).
"""

from collections.abc import Iterator, Mapping

from parley.privacy.psi import Leader, LeaderKeys, Points, Tags
from parley.privacy.psi_curve import POINT_BYTES
from parley.privacy.psi_files import Unfinished
from parley.privacy.psi_table import SALT_BYTES, VALUE_BYTES, Words, slots_for
from parley.privacy.psi_workers import Workers
from parley.tables.id_lists import IdList


class AnswerUnusable(ValueError):
    """A party's answer does not have the size that follows from its earlier messages."""


class Answer:
    """What one party sends back, as it arrives: the coordinator's ids without the blinding, and its table."""

    def __init__(self, leader: Leader, holder: int, ids: int, kept: Unfinished) -> None:
        """`ids` is the party's number of ids, `holder` its place among the parties."""
        self._leader, self._holder, self._ids = leader, holder, ids
        self.evaluated, self.slots = leader.evaluated(holder), leader.slots(holder)
        self._salt = kept.records(f"salt-{holder}", SALT_BYTES)

    @property
    def wants_points(self) -> bool:
        """Whether evaluated ids are due."""
        return len(self.evaluated) < len(self._leader)

    @property
    def wants_slots(self) -> bool:
        """Whether parts of the table are due."""
        return len(self.slots) < slots_for(self._ids)

    def unblinded(self, points: bytes, workers: Workers) -> bytes:
        """Take the blinding off a batch."""
        if not points or len(points) > POINT_BYTES * (len(self._leader) - len(self.evaluated)):
            raise AnswerUnusable("evaluated ids are not as many as were sent")
        return self._leader.unblinded(points, workers)

    def take_slots(self, salt: bytes, slots: bytes) -> None:
        """Keep a part of the table."""
        if not slots or len(slots) % VALUE_BYTES or len(slots) > VALUE_BYTES * (slots_for(self._ids) - len(self.slots)):
            raise AnswerUnusable("the table does not have the size that follows from the party's ids")
        if len(salt) != SALT_BYTES or (len(self._salt) and self._salt.read(0, 1) != salt):
            raise AnswerUnusable("the parts of the table are not under one salt")
        if not len(self._salt):
            self._salt.append(salt)
        self.slots.append(slots)

    def sums(self) -> Words:
        """What the party adds to the sum of every id."""
        return self._leader.sums(self._holder, self._salt.read(0, 1), self._ids)


class Alignment:
    """The coordinator's side of one alignment."""

    def __init__(
        self, ids: IdList, alignment_id: str, sizes: Mapping[str, int], keys: LeaderKeys, kept: Unfinished
    ) -> None:
        """`sizes` are the parties' numbers of ids, in the order of parties."""
        self.leader = Leader(ids, alignment_id.encode(), keys, kept)
        self.answers = {
            party: Answer(self.leader, holder, size, kept) for holder, (party, size) in enumerate(sizes.items())
        }

    def blinded(self, workers: Workers, first: int, last: int) -> Points:
        """Some of the coordinator's ids for every party."""
        return self.leader.blinded(workers, first, last)

    def match(self) -> int:
        """Find the intersection, and say how large it is."""
        return self.leader.match(answer.sums() for answer in self.answers.values())

    def matches(self, party: str) -> Iterator[Tags]:
        """The intersection as one party alone can read it, in parts."""
        return self.leader.matches(list(self.answers).index(party))

    def common(self, shares: Mapping[str, bytes]) -> IdList:
        """The intersection, once every party has given up its share of the shuffle."""
        return self.leader.common([shares[party] for party in self.answers])
