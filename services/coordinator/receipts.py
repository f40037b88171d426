"""Receipts that parties gave, and to whom they are still to be shown."""

from dataclasses import dataclass, field

from parley.contracts.aggregation.v1 import aggregation_pb2 as pb


@dataclass
class Receipts:
    """The receipts of one session: everybody who gave one gets everybody's with its next message."""

    _round: int = 0
    _given: dict[int, pb.Receipt] = field(default_factory=dict)
    _shown: set[int] = field(default_factory=set)

    def note(self, party: int, receipt: pb.Receipt) -> None:
        """Keep a party's receipt for a round; those of the round before have been shown."""
        if receipt.round != self._round:
            self._round, self._given, self._shown = receipt.round, {}, set()
        self._given[party] = receipt

    def owed(self, party: int) -> list[pb.Receipt]:
        """What is to be shown to a party now: once, and only if it gave a receipt itself."""
        if party in self._shown or party not in self._given:
            return []
        self._shown.add(party)
        return [self._given[each] for each in sorted(self._given)]
