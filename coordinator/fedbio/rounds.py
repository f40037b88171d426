"""FedBiO, FedBiOAcc and their -Local forms: what the coordinator asks for and what it learns.

J. Li, F. Huang and H. Huang, "Communication-efficient federated bilevel optimization with global and local lower level
problems", Algorithms 1 to 4. The coordinator draws who takes part, divides secure sums by their number and hands the
average on; it sees no addend. FedBiO has one phase per round; FedBiOAcc has two, because its momenta are evaluated at
the averaged variables and are then averaged themselves.

| paper | code |
|---|---|
| (1/M) Σ_m of x, y, u | `Averages.variables` |
| (1/M) Σ_m of ν, ω, q | `Averages.momenta` |
| round s, t̄_s = s·I | `k` |

Which blocks a vector holds is the parties' affair: the coordinator only adds and divides.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from parley.numerics.metrics import party_averages
from parley.numerics.participation import participants
from parley.privacy.aggregation import SurvivorsSum
from parley.protocols.fedbio.messages import AveragingRound
from parley.protocols.rounds import MEASURE_UNIT

Vector = NDArray[np.float64]
Answer = Vector | SurvivorsSum
"""A secure sum over all participants, or with recovery over those who are left."""


class InvalidSettings(ValueError):
    """The settings have no parties, or ask for more of them than there are."""


MEASURES = 7
"""Numbers that an evaluation sums, without averages of further figures."""
LARGEST_MEAN = 2.0**13
"""No variable or momentum needs to be larger; far below the limit of a secure sum, so that divergence has its name."""


class Diverged(ArithmeticError):
    """A sum that came back is not finite, or does not have the length of the one before."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The coordinator's side of a run."""

    parties: int
    """How many parties there are."""
    accelerated: bool = False
    """Two phases per round (FedBiOAcc) instead of one (FedBiO)."""
    sampled: int | None = None
    """How many parties take part in a round; None for all."""
    seed: int = 0
    """The run's seed: it decides who takes part when."""
    warm_rounds: int = 0
    """Rounds at the start that have no momenta."""
    newcomers: bool = False
    """Whether some party may not have been in the round before although everyone takes part: it has come back."""

    def __post_init__(self) -> None:
        if self.parties < 1:
            raise InvalidSettings("an average needs at least one party")
        if self.sampled is not None and not 1 <= self.sampled <= self.parties:
            raise InvalidSettings(f"{self.sampled} parties per round asked for; there are {self.parties}")

    @property
    def everyone(self) -> tuple[int, ...]:
        """All parties."""
        return tuple(range(self.parties))

    def drawn(self, k: int) -> tuple[int, ...]:
        """Who takes part in round k: the same answer whenever it is asked."""
        return participants(self.seed, k, self.parties, self.sampled)


@dataclass(frozen=True, slots=True)
class Averages:
    """All that the coordinator keeps between rounds, and all of the parties' state that it ever sees."""

    variables: Vector | None = None
    """Average of the shared variables; None before round 0 is over."""
    momenta: Vector | None = None
    """Average of their directions; None in FedBiO."""


@dataclass(frozen=True, slots=True)
class Progress:
    """What a round left behind."""

    averages: Averages
    movement: float
    """‖average of the variables after − before‖; nan in round 0."""


@dataclass(frozen=True, slots=True)
class Metrics:
    """The parties' measures, pooled by rows."""

    loss: float
    """Mean loss on checked (validation) rows."""
    error: float
    rows: int
    test_error: float | None = None
    """Share of mistakes on test rows; None where no party has any."""
    auc: float | None = None
    """Mean over the parties of how well small weights point at wrong labels; None where none knows the truth."""
    averages: Mapping[str, float] = field(default_factory=dict)
    """Other figures of the parties' own rows, averaged over them, where the spec asks for these."""


def iteration(settings: Settings, k: int, before: Averages) -> Generator[AveragingRound, Answer, Progress]:
    """Run round k from the averages of round k − 1: yield its phases, take secure sums, return what is left."""
    present = settings.drawn(k)
    total = yield AveragingRound("variables", k, present, _opening(settings, before))
    variables = _average(total, present, before.variables)
    movement = float("nan") if before.variables is None else float(np.linalg.norm(variables - before.variables))
    if not settings.accelerated or k < settings.warm_rounds:
        return Progress(Averages(variables), movement)
    total = yield AveragingRound("momenta", k, present, variables)
    return Progress(Averages(variables, _average(total, present, variables)), movement)


def evaluation(settings: Settings, k: int, averages: Averages) -> Generator[AveragingRound, Answer, Metrics]:
    """Ask all parties how the averaged variables do on their own rows: an extra phase, when wanted.

    The sums are in units of `MEASURE_UNIT` rows, so that they fit the ring however many rows there are.
    """
    answer = yield AveragingRound("evaluate", k, settings.everyone, averages.variables)
    total = answer.total if isinstance(answer, SurvivorsSum) else answer
    loss, errors, rows, mistakes, tested, auc, judges = total[:MEASURES]
    return Metrics(
        float(loss / rows),
        float(errors / rows),
        round(float(rows) * MEASURE_UNIT),
        float(mistakes / tested) if round(float(tested) * MEASURE_UNIT) else None,
        float(auc / judges) if round(float(judges)) else None,
        party_averages(total[MEASURES:]) if len(total) > MEASURES else {},
    )


def finish(settings: Settings, k: int, averages: Averages) -> AveragingRound:
    """The last instruction of a run: every party takes over the final averages; there is nothing to sum."""
    return AveragingRound("finish", k, settings.everyone, averages.variables)


def _opening(settings: Settings, before: Averages) -> Vector | None:
    if not settings.accelerated or before.momenta is None or before.variables is None:
        return before.variables
    # Who was in the round before already has its averaged variables; who was not needs them as well.
    alone = settings.sampled in (None, settings.parties) and not settings.newcomers
    return before.momenta if alone else np.concatenate([before.variables, before.momenta])


def _average(answer: Answer, present: tuple[int, ...], like: Vector | None) -> Vector:
    """The mean over those whose vectors are in the sum: all who were asked, unless some were lost."""
    total, addends = (answer.total, answer.addends) if isinstance(answer, SurvivorsSum) else (answer, len(present))
    if like is not None and total.size != like.size:
        raise Diverged(f"a sum of {total.size} numbers where {like.size} were expected; start the run again")
    mean: Vector = np.asarray(total, dtype=np.float64) / addends
    if not np.abs(mean).max(initial=0.0) <= LARGEST_MEAN:  # false for NaN too
        raise Diverged(
            f"training diverged: an average over the parties has grown beyond {LARGEST_MEAN:g}. Lower the steps (eta, "
            "gamma, tau), or standardise the features, and start again"
        )
    return mean
