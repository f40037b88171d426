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

from collections.abc import Generator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from parley.numerics.participation import participants as draw_participants
from parley.privacy.aggregation import SurvivorsSum
from parley.protocols.fedbio.messages import MEASURE_UNIT

Vector = NDArray[np.float64]
Answer = Vector | SurvivorsSum
"""A secure sum over all participants, or with recovery over those who are left."""
Phase = Literal["variables", "momenta", "evaluate", "conclude"]


class InvalidSettings(ValueError):
    """The settings name no parties, or ask for more of them than there are."""


class Diverged(ArithmeticError):
    """A sum that came back is not finite, or does not have the length of the one before."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The coordinator's side of a run."""

    parties: tuple[str, ...]
    """Names of all parties."""
    accelerated: bool = False
    """Two phases per round (FedBiOAcc) instead of one (FedBiO)."""
    sampled: int | None = None
    """How many parties take part in a round; None for all."""
    seed: int = 0
    """The run's seed: it decides who takes part when."""
    newcomers: bool = False
    """Whether some party may not have been in the round before although everyone takes part: it has come back."""

    def __post_init__(self) -> None:
        if not self.parties or len(set(self.parties)) != len(self.parties):
            raise InvalidSettings("name at least one party, and each party once")
        if self.sampled is not None and not 1 <= self.sampled <= len(self.parties):
            raise InvalidSettings(f"{self.sampled} parties per round asked for; there are {len(self.parties)}")

    @property
    def everyone(self) -> bool:
        """Whether all parties take part in every round."""
        return self.sampled is None or self.sampled == len(self.parties)


@dataclass(frozen=True, slots=True)
class Averages:
    """All that the coordinator keeps between rounds, and all of the parties' state that it ever sees."""

    variables: Vector | None = None
    """Average of the shared variables; None before round 0 is over."""
    momenta: Vector | None = None
    """Average of their directions; None in FedBiO."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One request to `participants`; the answer is the secure sum of their vectors."""

    phase: Phase
    round_index: int
    participants: tuple[str, ...]
    mean: Vector | None
    """The averaged vector that the participants apply first."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a round left behind."""

    round_index: int
    participants: tuple[str, ...]
    averages: Averages
    phases: int
    """Communication phases that the round took."""
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


def participants(settings: Settings, k: int) -> tuple[str, ...]:
    """Who takes part in round k: the same answer whenever it is asked."""
    chosen = draw_participants(settings.seed, k, len(settings.parties), settings.sampled)
    return tuple(settings.parties[i] for i in chosen)


def iteration(settings: Settings, k: int, averages: Averages | None = None) -> Generator[Instruction, Answer, Report]:
    """Run round k from the averages of round k − 1: yield instructions, take secure sums, return the report."""
    before = averages or Averages()
    present = participants(settings, k)
    total = yield Instruction("variables", k, present, _opening(settings, before))
    variables = _average(total, present, before.variables)
    movement = float("nan") if before.variables is None else float(np.linalg.norm(variables - before.variables))
    if not settings.accelerated:
        return Report(k, present, Averages(variables), 1, movement)
    total = yield Instruction("momenta", k, present, variables)
    return Report(k, present, Averages(variables, _average(total, present, variables)), 2, movement)


def evaluation(settings: Settings, k: int, averages: Averages) -> Generator[Instruction, Answer, Metrics]:
    """Ask all parties how the averaged variables do on their own rows: an extra phase, when wanted.

    The sums are in units of `MEASURE_UNIT` rows, so that they fit the ring however many rows there are.
    """
    answer = yield Instruction("evaluate", k, settings.parties, averages.variables)
    loss, errors, rows, mistakes, tested, auc, judges = answer.total if isinstance(answer, SurvivorsSum) else answer
    return Metrics(
        float(loss / rows),
        float(errors / rows),
        round(float(rows) * MEASURE_UNIT),
        float(mistakes / tested) if round(float(tested) * MEASURE_UNIT) else None,
        float(auc / judges) if round(float(judges)) else None,
    )


def conclusion(settings: Settings, k: int, averages: Averages) -> Instruction:
    """The last instruction of a run: every party takes over the final averages; there is nothing to sum."""
    return Instruction("conclude", k, settings.parties, averages.variables)


def _opening(settings: Settings, before: Averages) -> Vector | None:
    if not settings.accelerated or before.momenta is None or before.variables is None:
        return before.variables
    # Who was in the round before already has its averaged variables; who was not needs them as well.
    alone = settings.everyone and not settings.newcomers
    return before.momenta if alone else np.concatenate([before.variables, before.momenta])


def _average(answer: Answer, present: tuple[str, ...], like: Vector | None) -> Vector:
    """The mean over those whose vectors are in the sum: all who were asked, unless some were lost."""
    total, addends = (answer.total, answer.addends) if isinstance(answer, SurvivorsSum) else (answer, len(present))
    if like is not None and total.size != like.size:
        raise Diverged(f"a sum of {total.size} numbers where {like.size} were expected; start the run again")
    if not np.isfinite(total).all():
        raise Diverged("the sum is not finite; lower the steps (eta, gamma, tau) and resume from the checkpoint")
    mean: Vector = np.asarray(total, dtype=np.float64) / addends
    return mean
