"""What label releases cost: events (what happened) apart from accountants (what it costs).

Vertical federated bilevel optimisation (the paper), Theorem 2 says that the whole training is ε-DP.
differs from the paper: that holds only if each label
is in one draw; a record that is in R_i batches has been released R_i times, and those compose. Batches are public, so
no amplification by sampling is claimed. Neighbours differ in the label of one record (its class is replaced).

Every event describes one release of one record by its privacy loss: a distribution on a lattice, whose atoms are exact
because the mechanisms are discrete; Gaussian noise has a closed form. The accountants derive everything from it:

- `PURE`: ε adds up.
- `RENYI`: Rényi divergences on a grid of orders; about a millisecond, so it runs with every debit.
- `LOSS`: the privacy loss distribution by dp-accounting; exact to its FFT, for reports.

A count is applied in one place (`cost`), and an event that is not known is refused.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from parley.privacy.gaussian import gaussian_epsilon
from parley.privacy.noise import GRID


class UnknownEvent(ValueError):
    """An event for which no cost is known; nothing may be released under it."""


class InvalidEvent(ValueError):
    """An event whose parameters make no sense."""


@dataclass(frozen=True)
class LossLattice:
    """The privacy loss of one release: atoms at multiples of `step`, and the mass of an unbounded loss."""

    step: float
    masses: tuple[tuple[int, float], ...]
    infinite: float = 0.0


@dataclass(frozen=True)
class PureRelease:
    """Any release that is known to be ε-DP; the worst such mechanism is assumed."""

    epsilon: float
    kind: ClassVar[str] = "pure"

    def __post_init__(self) -> None:
        _require(0 <= self.epsilon < math.inf, f"epsilon must be finite and not negative, not {self.epsilon}")

    def loss(self) -> LossLattice:
        """Randomised response between the two neighbours: ±ε."""
        if self.epsilon == 0:
            return LossLattice(1.0, ((0, 1.0),))
        right = 1 / (1 + math.exp(-self.epsilon))
        return LossLattice(self.epsilon, ((1, right), (-1, 1 - right)))


@dataclass(frozen=True)
class RandomisedResponse:
    """k-ary randomised response: the true class with e^ε times the probability of any other."""

    epsilon: float
    classes: int
    kind: ClassVar[str] = "randomised_response"

    def __post_init__(self) -> None:
        _require_label_event(self.epsilon, self.classes)

    def loss(self) -> LossLattice:
        """ε at the true class, −ε at the neighbour's, 0 at the others."""
        wrong = math.exp(-self.epsilon) / (1 + (self.classes - 1) * math.exp(-self.epsilon))
        right = 1 - (self.classes - 1) * wrong
        return LossLattice(self.epsilon, ((1, right), (-1, wrong), (0, (self.classes - 2) * wrong)))


@dataclass(frozen=True)
class UnaryEncoding:
    """OUE: the true class's bit is set with probability ½, every other with 1/(e^ε + 1)."""

    epsilon: float
    classes: int
    kind: ClassVar[str] = "unary_encoding"

    def __post_init__(self) -> None:
        _require_label_event(self.epsilon, self.classes)

    def loss(self) -> LossLattice:
        """Neighbours differ in two bits; equal ones cancel."""
        q = 1 / (1 + math.exp(self.epsilon))
        return LossLattice(self.epsilon, ((1, (1 - q) / 2), (-1, q / 2), (0, 0.5)))


@dataclass(frozen=True)
class LaplaceLabels:
    """One-hot label plus discrete Laplace noise; a pair of one-hot rows differs in two coordinates."""

    epsilon: float
    classes: int
    kind: ClassVar[str] = "laplace_labels"

    def __post_init__(self) -> None:
        _require_label_event(self.epsilon, self.classes)

    @property
    def coordinates(self) -> int:
        """How many coordinates differ: with two classes one draw serves both."""
        return 1 if self.classes == 2 else 2

    @property
    def unit_epsilon(self) -> float:
        """ε of each coordinate; the noise has scale 1/unit_epsilon."""
        return self.epsilon / self.coordinates

    def loss(self) -> LossLattice:
        """A shift by 16 grid steps at output j loses (16 − 2j) rates for 0 ≤ j ≤ 16, on a lattice of two rates."""
        rate = self.unit_epsilon / GRID
        side = 1 / (1 + math.exp(-rate))
        atoms = math.tanh(rate / 2) * np.exp(-rate * np.arange(GRID + 1))
        atoms[0], atoms[GRID] = side, side * math.exp(-self.unit_epsilon)
        for _ in range(self.coordinates - 1):
            atoms = np.convolve(atoms, atoms)
        top = self.coordinates * GRID // 2
        masses = tuple((top - index, float(mass)) for index, mass in enumerate(atoms))
        return LossLattice(2 * rate, masses)


@dataclass(frozen=True)
class Unprotected:
    """A release without noise: the label itself may be read from it."""

    kind: ClassVar[str] = "unprotected"

    @property
    def epsilon(self) -> float:
        """No finite ε."""
        return math.inf

    def loss(self) -> LossLattice:
        """Everything is lost."""
        return LossLattice(1.0, (), infinite=1.0)


@dataclass(frozen=True)
class _GaussianNoise:
    """A record under noise that is Gaussian, or nearly so."""

    ratio: float
    """Δ/σ: sensitivity over noise."""
    distance: float = 0.0
    """Total variation between the noise that was drawn and the one that is accounted for, at most."""

    def __post_init__(self) -> None:
        _require(0 < self.ratio < math.inf, f"the ratio of sensitivity to noise must be positive, not {self.ratio}")
        _require(0 <= self.distance < 1, f"a distance in total variation lies in [0, 1), not {self.distance}")

    @property
    def epsilon(self) -> float:
        """No finite pure ε."""
        return math.inf


@dataclass(frozen=True)
class GaussianRelease(_GaussianNoise):
    """A record of sensitivity Δ under Gaussian noise; no lattice, but a closed form (gaussian.py)."""

    kind: ClassVar[str] = "gaussian"


@dataclass(frozen=True)
class GaussianSum(_GaussianNoise):
    """A record in a sum under discrete Gaussian noise (noise_shares.py): its Rényi divergences are a Gaussian's."""

    kind: ClassVar[str] = "gaussian_sum"


LatticeRelease = PureRelease | RandomisedResponse | UnaryEncoding | LaplaceLabels | Unprotected
Release = LatticeRelease | GaussianRelease | GaussianSum


@dataclass(frozen=True)
class Composed:
    """`event`, `count` times over."""

    event: Event
    count: int

    def __post_init__(self) -> None:
        _require(self.count >= 0, f"count must not be negative, not {self.count}")


@dataclass(frozen=True)
class Together:
    """All of `events`, on the same record."""

    events: tuple[Event, ...]


Event = Release | Composed | Together

RELEASES: dict[str, type[Release]] = {
    release.kind: release
    for release in (
        PureRelease,
        RandomisedResponse,
        UnaryEncoding,
        LaplaceLabels,
        GaussianRelease,
        GaussianSum,
        Unprotected,
    )
}

Cost = TypeVar("Cost")


class Accountant(ABC, Generic[Cost]):
    """A way to price releases. Subclasses know one release, its repetition and the sum of two costs; no event."""

    name: str

    @abstractmethod
    def nothing(self) -> Cost:
        """The cost of no release."""

    @abstractmethod
    def single(self, release: Release) -> Cost:
        """The cost of one release of one record."""

    @abstractmethod
    def repeated(self, cost: Cost, count: int) -> Cost:
        """`count` times that cost, count ≥ 1."""

    @abstractmethod
    def joined(self, one: Cost, other: Cost) -> Cost:
        """Both costs."""

    @abstractmethod
    def epsilon_of(self, cost: Cost, delta: float) -> float:
        """The ε of that cost at δ."""

    def epsilon(self, event: Event, delta: float = 0.0) -> float:
        """The ε of an event at δ."""
        if not 0 <= delta < 1:
            raise InvalidEvent(f"delta must lie in [0, 1), not {delta}.")
        return self.epsilon_of(cost(event, self), delta)


def cost(event: Event, accountant: Accountant[Cost]) -> Cost:
    """Price an event. The only place in which a count is applied."""
    match event:
        case Composed(event=inner, count=count):
            return accountant.repeated(cost(inner, accountant), count) if count else accountant.nothing()
        case Together(events=events):
            total = accountant.nothing()
            for each in events:
                total = accountant.joined(total, cost(each, accountant))
            return total
        case PureRelease() | RandomisedResponse() | UnaryEncoding() | LaplaceLabels() | Unprotected():
            return accountant.single(event)
        case GaussianRelease() | GaussianSum():
            return accountant.single(event)
        case _:
            raise UnknownEvent(f"{type(event).__name__} has no known cost; describe the release by a known event.")


class PureAccountant(Accountant[float]):
    """ε adds."""

    name = "pure"

    def nothing(self) -> float:
        """Zero."""
        return 0.0

    def single(self, release: Release) -> float:
        """The declared ε, which the sampler never exceeds."""
        return release.epsilon

    def repeated(self, cost: float, count: int) -> float:
        """count · ε."""
        return count * cost

    def joined(self, one: float, other: float) -> float:
        """The sum."""
        return one + other

    def epsilon_of(self, cost: float, delta: float) -> float:  # noqa: ARG002  (pure ε holds at every δ)
        """ε itself."""
        return cost


class RenyiAccountant(Accountant[NDArray[np.float64]]):
    """Rényi divergences at `orders`, which add."""

    name = "rdp"
    orders: ClassVar[NDArray[np.float64]] = 1 + np.geomspace(0.01, 1e5, 240)

    def nothing(self) -> NDArray[np.float64]:
        """Zero at every order."""
        return np.zeros_like(self.orders)

    def single(self, release: Release) -> NDArray[np.float64]:
        """log E_P[e^((α−1)·loss)] / (α−1)."""
        return renyi_divergences(release, tuple(self.orders))

    def repeated(self, cost: NDArray[np.float64], count: int) -> NDArray[np.float64]:
        """count · RDP."""
        return count * cost

    def joined(self, one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
        """The sum at each order."""
        return one + other

    def epsilon_of(self, cost: NDArray[np.float64], delta: float) -> float:
        """dp-accounting's conversion; at δ = 0 RDP has nothing to say."""
        if delta == 0 or not np.isfinite(cost).all():
            return math.inf if cost.any() else 0.0
        from dp_accounting.rdp import compute_epsilon  # seconds to import, and most processes never ask

        return float(compute_epsilon(self.orders, cost, delta)[0])


@dataclass(frozen=True)
class Losses:
    """Releases with their counts; they are convolved on a common lattice when ε is asked for."""

    counts: tuple[tuple[Release, int], ...] = ()


class LossAccountant(Accountant[Losses]):
    """dp-accounting's privacy loss distributions: convolution of the exact lattices."""

    name = "pld"

    def nothing(self) -> Losses:
        """No release."""
        return Losses()

    def single(self, release: Release) -> Losses:
        """One release."""
        return Losses(((release, 1),))

    def repeated(self, cost: Losses, count: int) -> Losses:
        """Each count times `count`."""
        return Losses(tuple((release, count * times) for release, times in cost.counts))

    def joined(self, one: Losses, other: Losses) -> Losses:
        """Both, equal releases merged."""
        merged = dict(one.counts)
        for release, times in other.counts:
            merged[release] = merged.get(release, 0) + times
        return Losses(tuple(merged.items()))

    def epsilon_of(self, cost: Losses, delta: float) -> float:
        """ε at δ. Lattices of one step compose without rounding; mixed ones are rounded up to a finer common one."""
        if not cost.counts:
            return 0.0
        lattices = [(each, times) for each, times in cost.counts if not isinstance(each, GaussianRelease | GaussianSum)]
        if len(lattices) < len(cost.counts):  # Gaussians have a closed form; beside other noise Rényi has to do
            return math.inf if not _all_gaussian(cost.counts) else _gaussian(cost.counts, delta)
        if any(release.loss().infinite for release, _ in lattices):
            return math.inf
        if delta == 0:
            return PURE.epsilon(Together(tuple(Composed(release, times) for release, times in lattices)))
        steps = [release.loss().step for release, _ in lattices]
        interval = steps[0] if len(set(steps)) == 1 else min(steps) / 16
        total = None
        for release, times in lattices:
            part = _distribution(release, interval).self_compose(times)
            total = part if total is None else total.compose(part)
        return float(total.get_epsilon_for_delta(delta))  # type: ignore[union-attr]


PURE = PureAccountant()
RENYI = RenyiAccountant()
LOSS = LossAccountant()


def online_epsilon(event: Event, delta: float = 0.0) -> float:
    """The better of pure ε and Rényi: sound at every δ, and quick enough for every debit. Exact for Gaussian noise."""
    if (exact := gaussian_only(event, delta)) is not None:
        return exact
    distant = distance_of(event)
    left = delta / 2 if distant else delta
    found = min(PURE.epsilon(event, delta), RENYI.epsilon(event, left) if left else math.inf)
    return with_distance(found, distant, delta - left)


def gaussian_only(event: Event, delta: float) -> float | None:
    """ε of Gaussian releases alone, by their closed form; None where there are others, or none at all."""
    counts = cost(event, LOSS).counts
    return _gaussian(counts, delta) if counts and _all_gaussian(counts) else None


def all_gaussian(event: Event) -> bool:
    """Whether there are Gaussian releases and sums, and nothing else."""
    counts = cost(event, LOSS).counts
    return bool(counts) and all(isinstance(release, GaussianRelease | GaussianSum) for release, _ in counts)


def distance_of(event: Event) -> float:
    """By how much in total variation the noise of all releases differs from what Rényi divergences are about."""
    counts = cost(event, LOSS).counts
    return sum(times * each.distance for each, times in counts if isinstance(each, GaussianRelease | GaussianSum))


def with_distance(epsilon: float, distance: float, spare: float) -> float:
    """ε, if what the distance costs at it is within the δ that was spared for it."""
    return epsilon if not distance or (epsilon < 500 and (1 + math.exp(epsilon)) * distance <= spare) else math.inf


def _all_gaussian(counts: Sequence[tuple[Release, int]]) -> bool:
    return all(isinstance(release, GaussianRelease) for release, _ in counts)


def _gaussian(counts: Sequence[tuple[Release, int]], delta: float) -> float:
    found = [(release, times) for release, times in counts if isinstance(release, GaussianRelease)]
    squares = sum(times * release.ratio**2 for release, times in found)
    return gaussian_epsilon(math.sqrt(squares), delta, sum(times * release.distance for release, times in found))


def reported_epsilon(event: Event, delta: float = 0.0) -> float:
    """The best of all accountants, for reports."""
    return min(online_epsilon(event, delta), LOSS.epsilon(event, delta) if delta else math.inf)


def to_json(release: Release) -> str:
    """Name a release in one canonical line, as the ledger stores it."""
    if type(release) not in RELEASES.values():
        raise UnknownEvent(f"{type(release).__name__} is not a single known release; it cannot be written down.")
    return json.dumps({"kind": release.kind, **asdict(release)}, sort_keys=True, separators=(",", ":"))


def from_json(text: str) -> Release:
    """Read a release back; anything that is not known is refused."""
    fields: dict[str, Any] = json.loads(text)
    kind = fields.pop("kind", None)
    if kind not in RELEASES:
        raise UnknownEvent(
            f"The ledger names a release {kind!r} that this version does not know; upgrade before reading it."
        )
    return RELEASES[kind](**fields)


@dataclass(frozen=True, eq=False)
class RecordCounts:
    """R_i: how often each record's label has been released, R_i = (lower batches with i) + (upper batches with i)."""

    counts: NDArray[np.int64]

    @staticmethod
    def none(records: int) -> RecordCounts:
        """No release yet."""
        return RecordCounts(np.zeros(records, dtype=np.int64))

    @staticmethod
    def of_batches(records: int, batches: Sequence[NDArray[np.int64]]) -> RecordCounts:
        """Count over batches; a record that a batch draws twice is released once, by one and the same noisy label."""
        counts = np.zeros(records, dtype=np.int64)
        for batch in batches:
            counts[batch] += 1  # numpy adds once for each record, however often the batch names it
        return RecordCounts(counts)

    def plus(self, other: RecordCounts) -> RecordCounts:
        """Both."""
        return RecordCounts(self.counts + other.counts)

    @property
    def maximum(self) -> int:
        """max_i R_i, the count that the guarantee rests on."""
        return int(self.counts.max(initial=0))

    def percentiles(self, *shares: float) -> tuple[float, ...]:
        """How R_i is spread, for reports."""
        return (
            tuple(float(value) for value in np.percentile(self.counts, shares))
            if self.counts.size
            else (0.0,) * len(shares)
        )


@cache
def renyi_divergences(release: Release, orders: tuple[float, ...]) -> NDArray[np.float64]:
    """Rényi divergences of one release at some orders."""
    if isinstance(release, GaussianRelease | GaussianSum):  # the distance is for `online_epsilon` to add
        return np.array(orders) * release.ratio**2 / 2
    lattice = release.loss()
    if lattice.infinite:
        return np.full(len(orders), math.inf)
    multiples, masses = np.array(lattice.masses).T
    excess = np.array(orders) - 1
    exponents = excess[:, None] * (multiples * lattice.step)
    # the largest loss is taken out of the sum, so that neither a high order nor a large ε overflows
    top = exponents.max(axis=1, keepdims=True)
    divergences = (top[:, 0] + np.log((masses * np.exp(exponents - top)).sum(axis=1))) / excess
    divergences.flags.writeable = False  # it is shared by all callers
    return np.asarray(divergences)


def _distribution(release: LatticeRelease, interval: float) -> Any:
    lattice = release.loss()
    rounded: dict[int, float] = {}
    for multiple, mass in lattice.masses:
        # losses are rounded up; 1e-9 of an interval keeps float dust from costing a whole one
        index = multiple if interval == lattice.step else math.ceil(multiple * lattice.step / interval - 1e-9)
        rounded[index] = rounded.get(index, 0.0) + mass
    from dp_accounting.pld import privacy_loss_distribution as pld  # see epsilon_of

    return pld.PrivacyLossDistribution.create_from_rounded_probability(rounded, 0.0, interval)


def _require(holds: bool, reason: str) -> None:
    if not holds:
        raise InvalidEvent(reason)


def _require_label_event(epsilon: float, classes: int) -> None:
    _require(0 < epsilon < math.inf, f"epsilon must be positive and finite, not {epsilon}")
    _require(classes >= 2, f"a label has at least two classes, not {classes}")
