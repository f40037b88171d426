"""Noisy labels: what GradPerturb draws before any gradient is formed.

Vertical federated bilevel optimisation (the paper), section 3.2 and Algorithms 2–3.
differs from the paper: Algorithm 3 adds one scalar u·Σ_k θ_k to θ_b;
outputs for different labels lie on different parallel lines, so it recovers every label at any ε. Here a noisy label ỹ
is drawn first and everything that leaves is a function of ỹ, in a label-independent order: θ̃ = Σ_k ỹ_k θ_k.

    paper   code       shape       held by       leaves?
    b       labels     (B,)        coordinator   never
    ỹ       noisy      (B, C)      coordinator   only through θ̃, ϑ̃
    c       1/unit_epsilon (scale of the Laplace noise)

Two schedules. `once` draws ỹ once per record, for this run and all later ones at this ε (permanent_noise.py), so that
they cost ε together however many runs, steps, trajectories and parties there are. `per_step` draws ỹ afresh at every
release and each release costs ε₀. In both, all trajectories and all parties (the active organisation's own included)
get gradients of the same ỹ.

Classes are columns: Softmax takes C columns, Logistic one (class 1), for which C = 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from parley.numerics.losses import (
    ForwardCorrectedBits,
    ForwardCorrectedLogistic,
    ForwardCorrectedSoftmax,
    Logistic,
    Loss,
    one_hot,
)
from parley.privacy.accounting import LaplaceLabels, RandomisedResponse, Release, UnaryEncoding, Unprotected
from parley.privacy.noise import (
    GRID,
    WORD_RANGE,
    GridLaplace,
    WordSource,
    bernoulli,
    grid_laplace,
    wrong_answer_threshold,
)

Array = NDArray[Any]
Labels = NDArray[np.int64]

Schedule = Literal["once", "per_step", "off"]
Kind = Literal["auto", "randomised_response", "unary_encoding", "laplace"]

ONCE = 0
"""The one release of the `once` schedule."""


class UnknownLabelMechanism(ValueError):
    """A schedule or a kind of label noise that does not exist, or not in this combination."""


class LabelMechanism(Protocol):
    """A way to turn labels into noisy target rows. Run by the label holder only."""

    @property
    def classes(self) -> int:
        """C."""
        ...

    @property
    def epsilon_per_release(self) -> float:
        """ε of one release of one record; the samplers' realised ε is never above it."""
        ...

    @property
    def event(self) -> Release:
        """The event that the ledger charges for one release."""
        ...

    @property
    def purpose(self) -> str:
        """Names the noise stream: other parameters get other words, so that two draws never share one."""
        ...

    def noisy(self, labels: Any, noise: WordSource, run: str, release: int, records: Labels) -> Array:
        """Return target rows (B×C, float32) of the records' labels; the same call gives the same bytes."""
        ...

    def training_loss(self, loss: Loss) -> Loss:
        """Return the loss that fits `noisy` rows: forward-corrected where they are randomised classes."""
        ...

    def mean_variance(self) -> float:
        """Return the variance of a de-biased target's entry, averaged over the C columns."""
        ...


@dataclass(frozen=True)
class RandomisedLabels:
    """k-ary randomised response: the true class, or any other with e^−ε times its probability."""

    epsilon: float
    classes: int
    name: ClassVar[str] = "randomised_response"

    @property
    def epsilon_per_release(self) -> float:
        """The declared ε."""
        return self.epsilon

    @property
    def event(self) -> Release:
        """k-ary randomised response."""
        return RandomisedResponse(self.epsilon, self.classes)

    @property
    def purpose(self) -> str:
        """The stream of this ε and number of classes."""
        return _purpose(self.name, self.classes, self.epsilon)

    @property
    def wrong_mass(self) -> int:
        """Mass of each wrong class in units of 2^-64, rounded up."""
        return wrong_answer_threshold(self.epsilon, self.classes - 1)

    @property
    def transition(self) -> NDArray[np.float64]:
        """P[ỹ, k], C×C: what the sampler really does, rounding included."""
        wrong = self.wrong_mass / WORD_RANGE
        table = np.full((self.classes, self.classes), wrong)
        np.fill_diagonal(table, 1 - (self.classes - 1) * wrong)
        return table

    def noisy_classes(self, labels: Labels, noise: WordSource, run: str, release: int, records: Labels) -> Labels:
        """Return the randomised classes."""
        words = noise.words(self.purpose, run, release, records, 1)[:, 0]
        wrong = np.uint64(self.wrong_mass)
        # the words below (C−1)·wrong fall into C−1 equal cells, one for each other class
        cell = words // wrong
        moved = cell < np.uint64(self.classes - 1)
        offset = np.where(moved, cell + np.uint64(1), np.uint64(0)).astype(np.int64)
        return np.asarray((labels + offset) % self.classes)

    def noisy(self, labels: Labels, noise: WordSource, run: str, release: int, records: Labels) -> Array:
        """One-hot rows of the randomised classes."""
        return one_hot(self.noisy_classes(labels, noise, run, release, records), self.classes)

    def debiased(self, rows: Array) -> Array:
        """Return rows whose mean is the true one-hot row: (ỹ − wrong)/(right − wrong)."""
        table = self.transition
        return np.asarray((rows - table[1, 0]) / (table[0, 0] - table[1, 0]))

    def training_loss(self, loss: Loss) -> Loss:
        """−log Σ_k P(ỹ|k) p_k, which needs no de-biasing."""
        if isinstance(loss, Logistic):
            return ForwardCorrectedLogistic(float(self.transition[1, 0]))
        return ForwardCorrectedSoftmax(self.transition)

    def mean_variance(self) -> float:
        """Of the de-biased rows."""
        right, wrong = self.transition[0, 0], self.transition[1, 0]
        total = right * (1 - right) + (self.classes - 1) * wrong * (1 - wrong)
        return float(total / self.classes / (right - wrong) ** 2)


@dataclass(frozen=True)
class UnaryLabels:
    """OUE: every class has a bit; the true one is set with probability ½, the others with 1/(e^ε + 1)."""

    epsilon: float
    classes: int
    name: ClassVar[str] = "unary_encoding"

    @property
    def epsilon_per_release(self) -> float:
        """The declared ε."""
        return self.epsilon

    @property
    def event(self) -> Release:
        """Optimised unary encoding."""
        return UnaryEncoding(self.epsilon, self.classes)

    @property
    def purpose(self) -> str:
        """The stream of this ε and number of classes."""
        return _purpose(self.name, self.classes, self.epsilon)

    @property
    def other_mass(self) -> int:
        """Mass of a set bit at another class in units of 2^-64, rounded up."""
        return wrong_answer_threshold(self.epsilon, 1)

    @property
    def other_probability(self) -> float:
        """The same as a probability."""
        return self.other_mass / WORD_RANGE

    def noisy_bits(
        self, labels: Labels, noise: WordSource, run: str, release: int, records: Labels
    ) -> NDArray[np.bool_]:
        """Return the randomised bits (B×C)."""
        words = noise.words(self.purpose, run, release, records, self.classes)
        own = np.arange(self.classes) == np.asarray(labels)[:, None]
        return np.where(own, bernoulli(words, WORD_RANGE // 2), bernoulli(words, self.other_mass))

    def noisy(self, labels: Labels, noise: WordSource, run: str, release: int, records: Labels) -> Array:
        """The randomised bits as rows of 0 and 1."""
        return self.noisy_bits(labels, noise, run, release, records).astype(np.float32)

    def debiased(self, rows: Array) -> Array:
        """Return rows whose mean is the true one-hot row: (bit − q)/(½ − q)."""
        q = self.other_probability
        return np.asarray((rows - q) / (0.5 - q))

    def training_loss(self, loss: Loss) -> Loss:  # noqa: ARG002  (Softmax: the vault refuses one logit)
        """The likelihood of the bits; cross-entropy on de-biased bits fails (11 % against 77 % on MNIST at ε = ½)."""
        return ForwardCorrectedBits(self.classes, 0.5, self.other_probability)

    def mean_variance(self) -> float:
        """Of the de-biased rows."""
        q = self.other_probability
        return (0.25 + (self.classes - 1) * q * (1 - q)) / self.classes / (0.5 - q) ** 2


@dataclass(frozen=True)
class LaplaceRows:
    """The paper's noise, done right: ỹ = e_b + r, r_k i.i.d. discrete Laplace of scale 2/ε₀ on a 1/16 grid.

    With two classes one draw of scale 1/ε₀ serves both columns: ỹ = (1 − t, t), t = b + r.
    """

    epsilon: float
    classes: int
    name: ClassVar[str] = "laplace"

    @property
    def epsilon_per_release(self) -> float:
        """The declared ε₀."""
        return self.epsilon

    @property
    def event(self) -> LaplaceLabels:
        """Discrete Laplace in one (C = 2) or two coordinates."""
        return LaplaceLabels(self.epsilon, self.classes)

    @property
    def purpose(self) -> str:
        """The stream of this ε and number of classes."""
        return _purpose(self.name, self.classes, self.epsilon)

    @property
    def table(self) -> GridLaplace:
        """The sampler of one coordinate."""
        return grid_laplace(self.event.unit_epsilon)

    def noisy(self, labels: Labels, noise: WordSource, run: str, release: int, records: Labels) -> Array:
        """Rows on the grid; exact in float32."""
        draws = 1 if self.classes == 2 else self.classes
        words = noise.words(self.purpose, run, release, records, draws)
        units = np.asarray(labels)[:, None] if draws == 1 else one_hot(labels, draws, np.int64)
        steps = self.table.noisy_steps(units, words).astype(np.float32) / np.float32(GRID)
        return np.asarray(np.concatenate([1 - steps, steps], axis=1) if draws == 1 else steps)

    def training_loss(self, loss: Loss) -> Loss:
        """The plain loss: its gradient is linear in the target."""
        return loss

    def mean_variance(self) -> float:
        """2α/(1−α)² on the grid, about 2/unit_epsilon² (8/ε₀² for C > 2)."""
        rate = self.event.unit_epsilon / GRID
        return float(0.5 / np.sinh(rate / 2) ** 2 / GRID**2)


@dataclass(frozen=True)
class NoNoise:
    """Labels as they are: `off` must be asked for, and the ledger says that nothing was protected."""

    classes: int
    name: ClassVar[str] = "off"

    @property
    def epsilon_per_release(self) -> float:
        """Infinite."""
        return float("inf")

    @property
    def event(self) -> Release:
        """An unprotected release."""
        return Unprotected()

    @property
    def purpose(self) -> str:
        """There is no noise to name."""
        return "off"

    def noisy(
        self,
        labels: Labels,
        noise: WordSource,  # noqa: ARG002
        run: str,  # noqa: ARG002
        release: int,  # noqa: ARG002
        records: Labels,  # noqa: ARG002
    ) -> Array:
        """The true one-hot rows."""
        return one_hot(labels, self.classes)

    def training_loss(self, loss: Loss) -> Loss:
        """The plain loss."""
        return loss

    def mean_variance(self) -> float:
        """Zero."""
        return 0.0


def choose_mechanism(
    schedule: Schedule, classes: int, epsilon: float | None = None, kind: Kind = "auto"
) -> LabelMechanism:
    """Return the mechanism of a run; the only place that decides.

    `once`: randomised response for C = 2; for C > 2 k-ary randomised response or OUE, whichever has the lower variance.
    `per_step`: the paper's Laplace rows. `kind` overrides the choice within a schedule; `off` takes neither.
    """
    if schedule == "off":
        if epsilon is not None:
            raise UnknownLabelMechanism("Label privacy is off but an epsilon is given; drop one of the two.")
        return NoNoise(classes)
    if epsilon is None:
        raise UnknownLabelMechanism(f"Label privacy {schedule!r} needs an epsilon; give one, or say off explicitly.")
    if kind == "auto":
        kind = "laplace" if schedule == "per_step" else _lower_variance(classes, epsilon)
    candidates: dict[tuple[str, str], type[RandomisedLabels | UnaryLabels | LaplaceRows]] = {
        ("once", "randomised_response"): RandomisedLabels,
        ("once", "unary_encoding"): UnaryLabels,
        ("per_step", "laplace"): LaplaceRows,
        ("per_step", "randomised_response"): RandomisedLabels,
        ("per_step", "unary_encoding"): UnaryLabels,
    }
    if (schedule, kind) not in candidates:
        raise UnknownLabelMechanism(
            f"No label mechanism {kind!r} for schedule {schedule!r}; choose among "
            + ", ".join(sorted(f"{kind} ({schedule})" for schedule, kind in candidates))
            + "."
        )
    mechanism = candidates[schedule, kind](epsilon, classes)
    mechanism.event  # noqa: B018  (refuses an ε or a number of classes that makes no sense)
    return mechanism


def _lower_variance(classes: int, epsilon: float) -> Kind:
    if classes == 2:
        return "randomised_response"
    rr, oue = RandomisedLabels(epsilon, classes), UnaryLabels(epsilon, classes)
    return "randomised_response" if rr.mean_variance() <= oue.mean_variance() else "unary_encoding"


def _purpose(name: str, classes: int, epsilon: float) -> str:
    return f"label/{name}/{classes}/{epsilon!r}"
