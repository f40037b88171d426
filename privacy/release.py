"""Draft → Gate → Release: the one way out.

A role computes drafts. A gate applies the protection that the manifest names for the field, makes sure that the ledger
has paid, and only then makes a `Release`. Encoders of derived data take releases and nothing else, and nothing outside
this module makes one (`tests/contract` checks both). A gate that hides nothing says so in its name: `Clear…`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from parley.numerics.arrays import Array, Vector
from parley.numerics.push_sum import Mass, RunningTotal
from parley.privacy.accounting import PureRelease, RecordCounts, Unprotected
from parley.privacy.coefficients import Coefficient, SharedCoefficients, Sharing, shared
from parley.privacy.laplace_noise import rounding_loss
from parley.privacy.ldp_accounting import LdpPlan, losses
from parley.privacy.ldp_states import NoisedState, StateDraft, noise_draft
from parley.privacy.ledger import Budget, BudgetExhausted, Charge, Ledger
from parley.privacy.noise import KeyedNoise
from parley.privacy.pair_products import Pair, column_mask
from parley.privacy.pairwise import PairwiseMasker, with_check
from parley.privacy.psi import HiddenTable, Points, SealedShares, ShuffleShare, Tags
from parley.privacy.recovery import (
    AskDisclosure,
    AskShares,
    AskValues,
    KeyOffer,
    RecoverableSums,
    RecoveryStep,
    Settlement,
    ShareBundle,
)
from parley.privacy.ring import Ring
from parley.privacy.trees import TreePair
from parley.privacy.two_tree import PartialSum, TreeNumber, TwoTreeNode

Content = TypeVar("Content", covariant=True)
TreeName = Literal["values", "masks"]
_SEAL = object()
_NUMBERS = {"values": TreeNumber.MASKED, "masks": TreeNumber.MASKS}


class NotPaid(RuntimeError):
    """An outcome holds a label release that the ledger does not cover."""


class Release(Generic[Content]):
    """Something that may leave. Made by the gates of this module only."""

    __slots__ = ("content",)

    def __init__(self, content: Content, seal: object) -> None:
        if seal is not _SEAL:
            raise TypeError("only a gate makes a Release")
        self.content = content


@dataclass(frozen=True)
class TreeSum:
    """A sum over a subtree of parties, on its way up tree 1 (values plus masks) or tree 2 (masks)."""

    tree: TreeName
    round: int
    elements: Array
    participants: int


@dataclass(frozen=True)
class Addend:
    """A party's part of a round's sum: in the clear, masked, or as the roots of trees."""

    participants: int
    """Bit i is set if party i takes part."""
    clear: Array | None = None
    masked: Array | None = None
    roots: tuple[TreeSum, ...] = ()


def bitmap(participants: Iterable[int]) -> int:
    """Bit i is set if party i takes part."""
    return sum(1 << party for party in participants)


def members(participants: int) -> tuple[int, ...]:
    """The parties whose bits are set."""
    return tuple(party for party in range(participants.bit_length()) if participants >> party & 1)


class Protection(Protocol):
    """How a party's addend is hidden from whoever sums it."""

    def protect(
        self,
        round_number: int,
        values: Vector,
        participants: frozenset[int] | None = None,
        told: Mapping[int, bytes] | None = None,
    ) -> Addend:
        """The addend of a round among `participants` (everyone if None). A round number never names two values.

        `told` is what this party and each other one were both told: where it differs, the sum does not open.
        """


class SumGate:
    """A party's gate for addends of secure sums."""

    def __init__(self, protection: Protection) -> None:
        self._protection = protection

    def release(
        self,
        round_number: int,
        draft: Vector,
        participants: frozenset[int] | None = None,
        told: Mapping[int, bytes] | None = None,
    ) -> Release[Addend]:
        """Hide a draft in the sum of a round."""
        return Release(self._protection.protect(round_number, draft, participants, told), _SEAL)


class CoefficientGate:
    """A party's gate for tuned coefficients: its policy says which of them may leave."""

    def __init__(self, party: str, sharing: Sharing) -> None:
        self._party, self._sharing = party, sharing

    def release(self, found: Sequence[Coefficient]) -> Release[SharedCoefficients]:
        """Round those that may leave, and keep the others."""
        return Release(shared(self._party, found, self._sharing), _SEAL)


class RecoveryGate:
    """A party's gate for sums that go on without a lost party: each step's answer, and none out of turn."""

    def __init__(self, sums: RecoverableSums) -> None:
        self._sums = sums

    def offer(self) -> Release[KeyOffer]:
        """A round key for the next sum."""
        return Release(self._sums.offer(), _SEAL)

    def seal(self, ask: AskShares) -> Release[ShareBundle]:
        """Shares of this party's secrets, sealed for the participants."""
        return Release(self._sums.seal(ask), _SEAL)

    def receive(self, ask: AskValues) -> None:
        """Take the others' shares, or refuse before a value is computed."""
        self._sums.receive(ask)

    def release(self, draft: Vector, participants: frozenset[int]) -> Release[Addend]:
        """Hide a draft in the open sum."""
        return Release(Addend(bitmap(participants), masked=self._sums.mask(draft, participants)), _SEAL)

    def settle(self, ask: AskDisclosure) -> Release[Settlement]:
        """What opens the sum over the survivors."""
        return Release(self._sums.settle(ask), _SEAL)


class ClearRelayGate:
    """The coordinator's gate for the steps of a sum with recovery: public keys, sealed shares and who answered.

    It adds no protection: nothing in these steps is the coordinator's own.
    """

    def release(self, step: RecoveryStep) -> Release[RecoveryStep]:
        """Pass on what parties have released; sealed shares stay closed to the coordinator."""
        return Release(step, _SEAL)


class MayHoldLabels(Protocol):
    """A draft that says which label release it was made from."""

    @property
    def label_release(self) -> int | None:
        """The release, or None where no label is in the draft."""


Draft = TypeVar("Draft", bound=MayHoldLabels)


class OutcomeGate:
    """The coordinator's gate: an outcome that was made from labels leaves only if the ledger covers it."""

    def __init__(self, is_paid: Callable[[int], bool], is_known_paid: Callable[[int], bool] = lambda _: True) -> None:
        """`is_known_paid` answers from memory; it is left out where no label is ever released."""
        self._is_paid, self.is_known_paid = is_paid, is_known_paid

    def release(self, draft: Draft) -> Release[Draft]:
        """Let the outcome of a round pass."""
        if draft.label_release is not None and not self._is_paid(draft.label_release):
            raise NotPaid(f"label release {draft.label_release} is not in the ledger; nothing was sent")
        return Release(draft, _SEAL)


@dataclass(frozen=True)
class MaskedColumns:
    """A party's columns for another one, under a mask that a third party alone knows beside their owner."""

    pair: int
    """The number of the two parties' pair."""
    elements: NDArray[np.uint64]
    """(rows, columns)."""


class ColumnGate:
    """A party's gate for columns that another one multiplies its own with: masked by their owner's and the helper's."""

    def release(self, pair: Pair, columns: NDArray[np.uint64], secret: bytes, *, first: bool) -> Release[MaskedColumns]:
        """Mask columns; `secret` is the one with the pair's helper."""
        masked = columns + column_mask(secret, pair, first=first, shape=columns.shape)
        return Release(MaskedColumns(pair.number, masked), _SEAL)


@dataclass(frozen=True)
class Portion:
    """What Push-Sum moves along one edge at one step: a portion, or (robust form) the edge's running total."""

    step: int
    mass: Mass
    total: RunningTotal | None = None


class ClearPortionGate:
    """A party's gate for Push-Sum. No mechanism hides a portion, so a party's policy must name the algorithm."""

    def release(self, step: int, mass: Mass, total: RunningTotal | None = None) -> Release[Portion]:
        """Let one step's portion (the same for all receivers with equal shares) pass."""
        return Release(Portion(step, mass, total), _SEAL)


@dataclass(frozen=True)
class OpenedSum:
    """A secure sum over all parties that this party asked for and opened. `privacy.requested_sums` alone makes one."""

    values: Vector


class ClearSumGate:
    """A party's gate for sums that it opened and tells the label holder. They are sums already; nothing is added."""

    def release(self, opened: OpenedSum) -> Release[OpenedSum]:
        """Let an opened sum pass."""
        return Release(opened, _SEAL)


class StateGate:
    """An agent's gate for states under local privacy: a step is charged Δ_t/ν_t in its ledger, noised, then released.

    The whole run is accounted for before its first step: one that would pass `run_limit`, or with all other runs of
    the ledger `limit`, is refused here.
    """

    def __init__(
        self,
        ledger: Ledger,
        noise: KeyedNoise,
        run: str,
        plan: LdpPlan | None,
        *,
        size: int,
        iterations: int,
        run_limit: float,
        limit: float,
        neighbours: tuple[str, ...],
    ) -> None:
        self._ledger, self._noise, self._run, self._plan = ledger, noise, run, plan
        self._neighbours, self._charges = neighbours, step_losses(plan, size, iterations)
        self._spends, elsewhere = float(self._charges.sum()), ledger.allotted(run)
        _refuse_beyond(self._spends, 0.0, run_limit)
        _refuse_beyond(self._spends, elsewhere, limit)

    def open(self) -> None:
        """Set the run's ε aside in the ledger; a resumed run finds it there."""
        # A little more than the sum, which the ledger adds up in another order.
        self._ledger.open_run(self._run, 1, Budget(max(self._spends * (1.0 + 1e-9), 1e-9)))

    def release(self, draft: StateDraft) -> Release[NoisedState]:
        """Charge a step, then let its state leave under noise; a replay is the same bytes and costs nothing.

        A neighbour that sends something else after a restart would make this agent's state another one under the same
        noise, whose difference is bare. So the ledger keeps what a step released, and nothing else ever leaves for it.
        """
        # One counter stands for the record that costs most: accounting is for the one that came first.
        event = Unprotected() if self._plan is None else PureRelease(float(self._charges[draft.step]))
        noised = NoisedState(draft.x, draft.y, draft.z, draft.step)
        if self._plan is not None:
            noised = noise_draft(draft, self._plan.noise_scales, self._noise, self._run)
        content = np.concatenate([noised.noised_x, noised.noised_y, noised.noised_z]).tobytes()
        charge = Charge(event, self._neighbours, RecordCounts(np.ones(1, dtype=np.int64)), content)
        self._ledger.reserve(self._run, draft.step, 1, charge)
        return Release(noised, _SEAL)


AlignmentDraft = TypeVar("AlignmentDraft", Points, HiddenTable, Tags, ShuffleShare, SealedShares)


class AlignmentGate:
    """A holder's gate for entity alignment: only what `privacy.psi` has hidden leaves, once the attempt is on record.

    `record` writes the attempt down durably, or refuses it; it is called before the first release.
    """

    def __init__(self, record: Callable[[], None] = lambda: None) -> None:
        self._record, self._recorded = record, False

    def release(self, draft: AlignmentDraft) -> Release[AlignmentDraft]:
        """Let one message of the protocol pass."""
        if not isinstance(draft, (Points, HiddenTable, Tags, ShuffleShare, SealedShares)):
            raise TypeError(
                f"a {type(draft).__name__} is not hidden: only drafts of parley.privacy.psi leave in an alignment"
            )
        if not self._recorded:
            self._record()
            self._recorded = True
        return Release(draft, _SEAL)


def _refuse_beyond(spends: float, elsewhere: float, limit: float) -> None:
    if spends + elsewhere <= limit:
        return
    before = f" on top of the {elsewhere:.6g} of other runs" if elsewhere else ""
    raise BudgetExhausted(
        f"the run would spend epsilon {spends:.6g}{before}, past the limit of {limit:.6g}: use more noise, smaller "
        "steps, tighter bounds, more records per step or fewer iterations"
    )


def step_losses(plan: LdpPlan | None, size: int, iterations: int) -> NDArray[np.float64]:
    """ε of the release of each step t = 0 … iterations−1, rounding of the noise included; infinite without noise."""
    if plan is None:
        return np.full(iterations, np.inf)
    each = np.zeros(iterations)  # the first state depends on no data
    if iterations > 1:
        each[1:] = losses(plan, iterations - 1).sum(axis=1)
        each[1:] += [
            sum(rounding_loss(size, float(nu)) for nu in plan.noise_scales.at(t)) for t in range(1, iterations)
        ]
    return each


class ClearProtection:
    """No protection: the addend in the clear. A party's policy must allow it."""

    def __init__(self, parties: int) -> None:
        self._everyone = frozenset(range(parties))

    def protect(
        self,
        round_number: int,  # noqa: ARG002 (nothing to hide, so nothing to count)
        values: Vector,
        participants: frozenset[int] | None = None,
        told: Mapping[int, bytes] | None = None,  # noqa: ARG002 (nothing that could be bound to it)
    ) -> Addend:
        """Hand the values on."""
        return Addend(bitmap(participants or self._everyone), clear=np.asarray(values))


class TreeGate:
    """A party's gate for `two_tree`: its value plus a fresh mask goes up tree 1, the mask up tree 2.

    The value carries pairwise masks too: they cancel in the sum over all parties if these were told the same.
    """

    def __init__(self, index: int, trees: TreePair, ring: Ring, secrets: Mapping[int, bytes]) -> None:
        """`secrets` are pair secrets of their own, for nothing but the sums up these trees."""
        self._index, self._trees, self._ring = index, trees, ring
        self._node = TwoTreeNode(index, trees, ring)  # refuses trees that leak
        self._masker = PairwiseMasker(index, secrets, ring)
        self._everyone = range(trees.masked.size)

    def begin(self, round_number: int, draft: Vector, told: Mapping[int, bytes] | None = None) -> None:
        """Enter a round with this party's value; `told` is what this party and each other one were both told."""
        masked = with_check(self._ring.encode(draft), self._ring)
        self._masker.mask_in_place(round_number, masked, self._everyone, told)
        self._node.begin(round_number, masked)

    def children(self, round_number: int, tree: TreeName) -> tuple[int, ...]:
        """Parties whose partial sums are due."""
        return self._node.children(round_number, _NUMBERS[tree])

    def parent(self, tree: TreeName) -> int | None:
        """Whom this party's partial sum goes to; None at the root, which sends it to the coordinator."""
        return (self._trees.masked if tree == "values" else self._trees.masks).parents[self._index]

    def forward(self, round_number: int, tree: TreeName, received: Sequence[tuple[int, TreeSum]]) -> Release[TreeSum]:
        """Own summand plus what the children sent."""
        number = _NUMBERS[tree]
        parts = [PartialSum(part.round, number, child, part.participants, part.elements) for child, part in received]
        total = self._node.forward(round_number, number, parts)
        return Release(TreeSum(tree, round_number, total.elements, total.participants), _SEAL)

    def abandon(self, round_number: int) -> None:
        """Forget a round that will not end; its number stays used."""
        self._node.abandon(round_number)

    def addend(self, roots: Sequence[Release[TreeSum]]) -> Release[Addend]:
        """What this party tells the coordinator: the sums that ended here."""
        everyone = (1 << self._trees.masked.size) - 1
        return Release(Addend(everyone, roots=tuple(root.content for root in roots)), _SEAL)
