"""Sums over the parties of one process: in the clear, or under the protections of a deployed run."""

import hashlib
import hmac
import secrets
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from parley.contracts.aggregation.v1 import aggregation_pb2 as pb
from parley.numerics.arrays import Vector
from parley.party.tree_sums import TREES
from parley.privacy.aggregation import Pairwise, SumOpening, ring_of, trees_of
from parley.privacy.release import Addend, ClearProtection, Release, SumGate, TreeGate, TreeName, TreeSum
from parley.protocols.aggregation.codec import decode_tree_sum, encode_tree_sum
from parley.protocols.tensor.codec import Blobs
from parley.simulation.crossing import from_bytes, to_bytes
from parley.spec.protection import AggregationSpec

Releases = dict[int, Release[Addend]]
Secrets = Callable[[str], dict[int, bytes]]
"""Of a purpose: one party's secrets with every other one."""


class Sums(Protocol):
    """How the drafts of a round become its sum."""

    def hide(self, number: int, drafts: Mapping[int, Vector]) -> Releases:
        """What each participant of round `number` sends of its draft."""

    def open(self, addends: Sequence[Addend], participants: Sequence[int]) -> Vector:
        """Their sum, from what they sent, in the order of the participants."""


class ClearSums:
    """Nothing is hidden. The sum is in the precision of the drafts, party after party."""

    def __init__(self, parties: int) -> None:
        self._gate = SumGate(ClearProtection(parties))

    def hide(self, number: int, drafts: Mapping[int, Vector]) -> Releases:
        """The drafts themselves."""
        among = frozenset(drafts)
        return {party: self._gate.release(number, draft, among) for party, draft in drafts.items()}

    def open(self, addends: Sequence[Addend], participants: Sequence[int]) -> Vector:  # noqa: ARG002 (as they came)
        """Their sum."""
        total: Vector = np.sum([np.asarray(addend.clear) for addend in addends], axis=0)
        return total


class ProtectedSums:
    """What the spec asks for, with fresh keys; a sum with `recovery` is a pairwise one, since nobody is lost here."""

    def __init__(self, settings: AggregationSpec, parties: int) -> None:
        self._opening, self._trees = SumOpening(settings, parties), settings.kind == "two_tree"
        ring, shared = ring_of(settings), pair_secrets(parties)
        self._tree_gates = [TreeGate(m, trees_of(parties), ring) for m in range(parties)] if self._trees else []
        self._gates = [
            SumGate(
                ClearProtection(parties)
                if settings.kind == "plain"
                else Pairwise(m, shared[m]("mask"), ring, settings.minimum_parties)
            )
            for m in range(0 if self._trees else parties)
        ]

    def hide(self, number: int, drafts: Mapping[int, Vector]) -> Releases:
        """Masked drafts, or the roots of two trees."""
        if self._trees:
            return self._sum_up_trees(number, drafts)
        among = frozenset(drafts)
        return {party: self._gates[party].release(number, draft, among) for party, draft in drafts.items()}

    def open(self, addends: Sequence[Addend], participants: Sequence[int]) -> Vector:
        """Their sum, or SumRefused."""
        return self._opening.open(addends, participants)

    def _sum_up_trees(self, number: int, drafts: Mapping[int, Vector]) -> Releases:
        for party, draft in drafts.items():
            self._tree_gates[party].begin(number, draft)
        roots: dict[int, list[Release[TreeSum]]] = {party: [] for party in drafts}
        for tree in TREES:
            root = next(party for party in drafts if self._tree_gates[party].parent(tree) is None)
            roots[root].append(self._climbed(number, tree, root))
        return {party: self._tree_gates[party].addend(sums) for party, sums in roots.items()}

    def _climbed(self, number: int, tree: TreeName, party: int) -> Release[TreeSum]:
        """The sum over the subtree of a party, bytes between each party and its parent."""
        gate = self._tree_gates[party]
        received = [(child, _sent_up(self._climbed(number, tree, child))) for child in gate.children(number, tree)]
        return gate.forward(number, tree, received)


def pair_secrets(parties: int) -> list[Secrets]:
    """For each party its secrets with the others: the same two parties have the same one for a purpose."""
    key = secrets.token_bytes(32)

    def secret(one: int, other: int, purpose: str) -> bytes:
        return hmac.digest(key, f"{min(one, other)}/{max(one, other)}/{purpose}".encode(), hashlib.sha256)

    def of_party(index: int) -> Secrets:
        return lambda purpose: {m: secret(index, m, purpose) for m in range(parties) if m != index}

    return [of_party(index) for index in range(parties)]


def _sent_up(release: Release[TreeSum]) -> TreeSum:
    blobs: Blobs = deque()
    return decode_tree_sum(*from_bytes(pb.MaskedTheta, to_bytes(encode_tree_sum(release, blobs), blobs)))
