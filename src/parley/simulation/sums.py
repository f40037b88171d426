"""Sums over the parties of one process: in the clear, or under the protections of a deployed run."""

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from parley.numerics.arrays import Vector
from parley.party.tree_sums import TreeSums
from parley.privacy.aggregation import Pairwise, SumOpening, ring_of, trees_of
from parley.privacy.mask_graph import MaskGraph
from parley.privacy.release import Addend, ClearProtection, Release, SumGate, TreeGate
from parley.simulation.peers import memory_peers
from parley.spec.protection import AggregationSpec

TREE_SECONDS = 3600.0
"""A sum up the trees of one process waits for nobody but the processor."""
Releases = dict[int, Release[Addend]]
Secrets = Callable[[str], Mapping[int, bytes]]
"""Of a purpose: one party's secrets with every other one."""


class Sums(Protocol):
    """How the drafts of a round become its sum."""

    async def hide(self, number: int, drafts: Mapping[int, Vector]) -> Releases:
        """What each participant of round `number` sends of its draft."""

    def open(self, addends: Sequence[Addend], participants: Sequence[int]) -> Vector:
        """Their sum, from what they sent, in the order of the participants."""


class ClearSums:
    """Nothing is hidden. The sum is in the precision of the drafts, party after party."""

    def __init__(self, parties: int) -> None:
        self._gate = SumGate(ClearProtection(parties))

    async def hide(self, number: int, drafts: Mapping[int, Vector]) -> Releases:
        """The drafts themselves."""
        among = frozenset(drafts)
        return {party: self._gate.release(number, draft, among) for party, draft in drafts.items()}

    def open(self, addends: Sequence[Addend], participants: Sequence[int]) -> Vector:  # noqa: ARG002 (as they came)
        """Their sum."""
        total: Vector = np.sum([np.asarray(addend.clear) for addend in addends], axis=0)
        return total


class MaskedSums:
    """Pairwise masks, or addends in the clear that are opened as a coordinator opens them.

    A spec's `recovery` changes nothing here: nobody is lost.
    """

    def __init__(self, settings: AggregationSpec, parties: int) -> None:
        self._opening, shared = SumOpening(settings, parties), pair_secrets(parties)
        graph = MaskGraph(secrets.token_bytes(32))
        self._gates = [
            SumGate(
                ClearProtection(parties)
                if settings.kind == "plain"
                else Pairwise(m, shared[m]("mask"), ring_of(settings), settings.minimum_parties, graph)
            )
            for m in range(parties)
        ]

    async def hide(self, number: int, drafts: Mapping[int, Vector]) -> Releases:
        """Each draft under masks that cancel in the sum over all of them."""
        among = frozenset(drafts)
        return {party: self._gates[party].release(number, draft, among) for party, draft in drafts.items()}

    def open(self, addends: Sequence[Addend], participants: Sequence[int]) -> Vector:
        """Their sum, or SumRefused."""
        return self._opening.open(addends, participants)


class TwoTreeSums:
    """Masked values up one tree and masks up another, from party to party."""

    def __init__(self, settings: AggregationSpec, parties: int) -> None:
        self._opening, ring, shared = SumOpening(settings, parties), ring_of(settings), pair_secrets(parties)
        gates = [TreeGate(m, trees_of(parties), ring, shared[m]("trees")) for m in range(parties)]
        links = zip(gates, memory_peers(parties), strict=True)
        self._members = [TreeSums(gate, peers, TREE_SECONDS) for gate, peers in links]

    async def hide(self, number: int, drafts: Mapping[int, Vector]) -> Releases:
        """What ends at each party; the roots have the sums."""
        added = [self._members[party].add(number, draft) for party, draft in drafts.items()]
        return dict(zip(drafts, await asyncio.gather(*added), strict=True))

    def open(self, addends: Sequence[Addend], participants: Sequence[int]) -> Vector:
        """The sum over all parties, or SumRefused."""
        return self._opening.open(addends, participants)


def protected_sums(settings: AggregationSpec, parties: int) -> Sums:
    """Sums as the spec has them, with fresh keys."""
    return (TwoTreeSums if settings.kind == "two_tree" else MaskedSums)(settings, parties)


def pair_secrets(parties: int) -> list[Secrets]:
    """For each party its secrets with the others: the same two parties have the same one for a purpose."""
    key = secrets.token_bytes(32)

    def secret(one: int, other: int, purpose: str) -> bytes:
        return hmac.digest(key, f"{min(one, other)}/{max(one, other)}/{purpose}".encode(), hashlib.sha256)

    def of_party(index: int) -> Secrets:
        return lambda purpose: _PairSecrets(index, parties, lambda m: secret(index, m, purpose))

    return [of_party(index) for index in range(parties)]


class _PairSecrets(Mapping[int, bytes]):
    """One party's secrets with the others, derived when they are needed: a thousand parties have a million."""

    def __init__(self, index: int, parties: int, derive: Callable[[int], bytes]) -> None:
        self._index, self._parties, self._derive = index, parties, derive

    def __getitem__(self, party: int) -> bytes:
        if party == self._index or not 0 <= party < self._parties:
            raise KeyError(party)
        return self._derive(party)

    def __iter__(self) -> Iterator[int]:
        return (party for party in range(self._parties) if party != self._index)

    def __len__(self) -> int:
        return self._parties - 1
