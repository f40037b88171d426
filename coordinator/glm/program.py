"""Generalised linear models at the coordinator: labels behind their gate, rounds, and how the saved models predict."""

from collections.abc import Generator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import Message

from parley.coordinator.forecasts import Forecast, Trips, Widths, widths_of
from parley.coordinator.glm import rounds as glm
from parley.coordinator.labels import LabelAccess, LabelsMissing, ReleasePlan, check_rows
from parley.coordinator.programs import CommonRows, CoordinatorAlgorithm, Head, Observer, Predictor, due
from parley.numerics.arrays import Vector
from parley.numerics.generalised_linear import Classes, Family, Numbers
from parley.numerics.losses import ForwardCorrectedLogistic, Logistic, Loss, Squared
from parley.numerics.streams import stream
from parley.privacy.evaluations import Evaluation
from parley.privacy.release import Addend, OutcomeGate, Release
from parley.protocols.glm.codec import PROTOCOL, decode_contribution, encode_instruction
from parley.protocols.glm.messages import GlmRound, mixtures
from parley.protocols.glm.settings import GlmSpec
from parley.protocols.tensor.codec import Blobs
from parley.spec.rows import RowSets, divide
from parley.spec.run import RunSpec
from parley.tables.errors import RowsDiffer
from parley.tables.loading import Labels


class GlmForm:
    """How the rounds look on the wire."""

    outputs = 1

    def encode(self, number: int, release: Release[GlmRound]) -> tuple[Message, Blobs]:
        """The instruction of a round."""
        return encode_instruction(number, release)

    def decode(self, message: Any, blobs: Blobs, release: Release[GlmRound]) -> Addend | None:
        """A party's contribution."""
        return decode_contribution(message, blobs, release)


class GlmProgram(GlmForm):
    """A run: labels behind their gate, rounds from `rounds`."""

    finish = GlmRound("finish", 1)

    def __init__(self, problem: glm.Problem, gate: OutcomeGate) -> None:
        """`gate` lets solutions pass whose label release the ledger covers."""
        self._problem, self.gate = problem, gate

    def rounds(self, done: int, observe: Observer) -> Generator[GlmRound, Vector, None]:
        """Every round of the run."""
        return glm.rounds(self._problem, done, observe)


def program(spec: RunSpec, access: LabelAccess) -> GlmProgram:
    """The program of a run."""
    settings = spec.settings(GlmSpec)
    labels = _labels(settings, access)
    rows = divide(spec.split, len(labels), stream(spec.seed, "split"))
    loss: Loss = Squared() if settings.variance_power is not None else Logistic()
    plan = ReleasePlan(lambda _: rows.trained, 1, rows.trained)
    gates = [gate := access.gate(labels, loss, plan, dtype=np.float64)]
    exposed = exposure(settings, access, labels)
    if exposed is not None:
        gates.append(exposed.access.gate(exposed.table, Squared(), plan, dtype=np.float64))
    problem = glm.Problem(
        settings,
        family_of(settings, gate.loss),
        rows,
        gate,
        _evaluations(access, labels, rows),
        family_of(settings, loss),
        spec.checkpoint_every,
        access.class_weights(labels, rows.trained, settings.class_weights),
        None if exposed is None else glm.Exposure(gates[1], exposed.table.values.astype(np.float64)),
    )
    paid = OutcomeGate(
        lambda release: all(each.is_paid(release) for each in gates),
        lambda release: all(each.is_known_paid(release) for each in gates),
    )
    return GlmProgram(problem, paid)


class Exposed(NamedTuple):
    """A label table with how much of each row was observed."""

    table: Labels
    access: LabelAccess


def exposure(settings: GlmSpec, access: LabelAccess, labels: Labels) -> Exposed | None:
    """The exposures that the spec names; None where rows count alike.

    Raises:
        LabelsMissing: if they are not all positive.
        RowsDiffer: if they are about other rows.
    """
    if settings.exposure is None:
        return None
    beside = access.beside(settings.exposure)
    known = beside.load("squared")
    if not np.array_equal(known.ids, labels.ids):
        raise RowsDiffer(f"{settings.exposure} is not about the rows of the labels: align them by id")
    if known.values.min(initial=1.0) <= 0:
        raise LabelsMissing(
            f"exposures are positive, and some of {settings.exposure} are not: correct or drop those rows"
        )
    return Exposed(known, beside)


def family_of(settings: GlmSpec, loss: Loss) -> Family:
    """The distribution of the labels as they come out of the gate."""
    if settings.variance_power is not None:
        return Numbers(settings.variance_power)
    return Classes(loss.flip if isinstance(loss, ForwardCorrectedLogistic) else 0.0)


def _labels(settings: GlmSpec, access: LabelAccess) -> Labels:
    labels, power = access.load(settings.loss), settings.variance_power
    if power and (labels.values.min(initial=1.0) < 0 or (power == 2 and labels.values.min(initial=1.0) == 0)):
        kind = "positive numbers" if settings.family == "gamma" else "numbers that are not negative"
        raise LabelsMissing(f"family {settings.family} is for {kind}: some labels are not; take another family")
    return labels


def _evaluations(access: LabelAccess, labels: Labels, rows: RowSets) -> dict[str, Evaluation]:
    return {name: access.evaluation(labels, chosen, name, 1) for name, chosen in rows.held_out.items()}


def check(spec: RunSpec, access: LabelAccess, rows: CommonRows) -> None:
    """Refuse labels that do not fit the parties' rows or the family, or a split that does not fit the rows."""
    labels = _labels(spec.settings(GlmSpec), access)
    check_rows(labels, rows.count, rows.digest, rows.party)
    if spec.settings(GlmSpec).variance_power == 0:  # others have a log link
        access.check_size(labels)
    exposure(spec.settings(GlmSpec), access, labels)
    access.class_weights(labels, np.arange(rows.count), spec.settings(GlmSpec).class_weights)
    _evaluations(access, labels, divide(spec.split, rows.count, stream(spec.seed, "split")))


def predictor(spec: RunSpec, access: LabelAccess) -> Predictor:
    """Probabilities or expected values from the summed linear predictors of any rows."""
    settings = spec.settings(GlmSpec)
    labels = access.load(settings.loss)
    family = family_of(settings, Logistic())
    return Predictor(
        GlmForm(),
        lambda first, count: GlmRound("predict", first=first, count=count),
        lambda total: family.mean(total)[:, None],
        labels.classes,
    )


def foretell(spec: RunSpec, access: LabelAccess, widths: Widths) -> Forecast | None:
    """What the rounds carry: mixtures of all columns up, row by row; the solution down, 8 bytes a number."""
    settings = spec.settings(GlmSpec)
    if settings.penalty.strength and settings.penalty.l1_ratio:
        return None  # shrinking ends when the coefficients have settled
    rows = divide(spec.split, len(_labels(settings, access)), stream(spec.seed, "split"))
    mixed = mixtures(sum(widths_of(widths, [entry.name for entry in spec.parties])))
    solution = 8 * (mixed + 1)
    trips = [Trips(1, 0.0, count * mixed, 8) for count in glm.design_parts(len(rows.trained), mixed)]
    if settings.penalty.strength:
        trips.append(Trips(1, 0.0, 2 * mixed**2, 8))
    else:
        solution += 8 * (mixed + 1) ** 2  # with how columns follow from each other
        solution += 8 * (mixed + 1) ** 2 if settings.class_weights is None else 0  # and how sure it is
    ends = [Trips(1, keeps=True)] if due(1, spec.checkpoint_every) else []
    parts = range(0, len(rows.measured), glm.EVALUATION_ROWS)
    ends += [Trips(1, 0.0, min(glm.EVALUATION_ROWS, len(rows.measured) - first), 8) for first in parts]
    first, *others = [*ends, Trips(1, keeps=True)]
    return [*trips, replace(first, sent=solution), *others]


def head(spec: RunSpec) -> Head:
    """The mean of the family."""
    power = spec.settings(GlmSpec).variance_power
    if power is None:
        return Head("logistic", "classes")
    return Head("identity" if power == 0 else "exponential", "real")


ALGORITHM = CoordinatorAlgorithm(PROTOCOL, program, check, predictor, head, foretell)
