"""BAMBI at the coordinator: labels behind their gate, rounds, and how the saved models predict."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf.message import Message

from parley.coordinator.bambi.course import Course
from parley.coordinator.bambi.forecast import forecast
from parley.coordinator.bambi.local_rounds import LocalPlan, LocalRounds, Pace
from parley.coordinator.bambi.problem import Plan, Problem
from parley.coordinator.bambi.rounds import BilevelRounds
from parley.coordinator.forecasts import Forecast, Widths
from parley.coordinator.labels import LabelAccess, LabelsMissing, ReleasePlan, check_rows
from parley.coordinator.programs import CommonRows, CoordinatorAlgorithm, Head, Observer, Predictor
from parley.numerics.arrays import Array, Vector
from parley.numerics.losses import Loss, clean_loss, unbiased_target
from parley.numerics.streams import stream
from parley.numerics.weighted_loss import weighted
from parley.privacy.evaluations import Evaluation
from parley.privacy.label_gate import LabelGate
from parley.privacy.release import Addend, OutcomeGate, Release
from parley.protocols.bambi.codec import PROTOCOL, decode_contribution, encode_instruction
from parley.protocols.bambi.columns import widened
from parley.protocols.bambi.messages import Round, RowsForward
from parley.protocols.bambi.settings import BambiSpec
from parley.protocols.rounds import Finish
from parley.protocols.tensor.codec import Blobs
from parley.spec.rows import Rows, RowSets, divide
from parley.spec.run import RunSpec
from parley.tables.errors import RowsDiffer
from parley.tables.loading import Labels

if TYPE_CHECKING:
    from parley.coordinator.bambi.own_problem import OwnProblem

SEPARATOR = b"\n"
"""Between the course, which is one line, and the variables of one's own problem."""


class ProblemsUnavailable(LabelsMissing):
    """The coordinator cannot run problems of one's own."""


@dataclass
class BambiForm:
    """How BAMBI's rounds look on the wire."""

    outputs: int
    """Columns of the summed embedding."""
    half: bool = False
    """Whether arrays go to the parties in half precision."""

    def encode(self, number: int, release: Release[Round]) -> tuple[Message, Blobs]:
        """The instruction of a round."""
        return encode_instruction(number, release, self.half)

    def decode(self, message: Any, blobs: Blobs, release: Release[Round]) -> Addend | None:
        """A party's contribution."""
        return decode_contribution(message, blobs, release.content.ask)


class BambiProgram(BambiForm):
    """A run: labels behind their gate, rounds from `rounds`."""

    finish = Round(None, Finish())

    def __init__(self, problem: Problem, gate: OutcomeGate) -> None:
        """`gate` lets outcomes pass whose label releases the ledger covers."""
        super().__init__(problem.outputs, problem.half)
        self.gate, self._rounds, self._own = gate, BilevelRounds(problem), problem.own

    def rounds(self, done: int, observe: Observer) -> Generator[Round, Vector, None]:
        """Every round of the run."""
        return self._rounds.rounds(done, observe)

    def kept(self) -> bytes:
        """How the run is going."""
        course = self._rounds.course.encoded()
        return course if self._own is None else course + SEPARATOR + self._own.encoded()

    def restore(self, content: bytes) -> None:
        """Go on as it was kept."""
        course, _, variables = content.partition(SEPARATOR)
        self._rounds.course = Course.decoded(course)
        if self._own is not None:
            self._own.restore(variables)


class LocalProgram(BambiForm):
    """A run by local rounds; what the coordinator remembers of it is part of every checkpoint."""

    finish = Round(None, Finish())

    def __init__(self, problem: Problem, gate: OutcomeGate) -> None:
        super().__init__(problem.outputs, problem.half)
        self.gate, self._rounds = gate, LocalRounds(problem)

    def rounds(self, done: int, observe: Observer) -> Generator[Round, Vector, None]:
        """Every round of the run."""
        return self._rounds.rounds(done, observe)

    def kept(self) -> bytes:
        """The pace of the run."""
        return self._rounds.pace.encoded()

    def restore(self, content: bytes) -> None:
        """Go on at a pace that was kept."""
        self._rounds.pace = Pace.decoded(content)


def program(spec: RunSpec, access: LabelAccess) -> BambiProgram | LocalProgram:
    """The program of a run."""
    settings = spec.settings(BambiSpec)
    labels = access.load(settings.loss)
    rows = divide(spec.split, len(labels), stream(spec.seed, "split"))
    local = settings.hypergradient == "local"
    plan = (LocalPlan if local else Plan)(settings, rows, spec.seed)
    loss, outputs = loss_of(settings, labels)
    releases = ReleasePlan(plan.released_rows, plan.releases, rows.trained)
    gate = access.gate(labels, loss, releases)
    own, gates = own_problem(spec, access, labels, gate.loss, releases)
    gates = [gate, *gates]
    weights = access.class_weights(labels, rows.trained, settings.class_weights)
    problem = Problem(
        plan,
        weighted(gate.loss, weights),
        gate,
        outputs,
        spec.dtype,
        spec.evaluate_every,
        spec.checkpoint_every,
        evaluations(spec, access, labels, rows),
        own,
        settings.sends_half(spec.dtype),
    )
    paid = OutcomeGate(
        lambda release: all(each.is_paid(release) for each in gates),
        lambda release: all(each.is_known_paid(release) for each in gates),
    )
    return (LocalProgram if local else BambiProgram)(problem, paid)


def own_problem(
    spec: RunSpec, access: LabelAccess, labels: Labels, loss: Loss, releases: ReleasePlan | None
) -> tuple["OwnProblem | None", list[LabelGate]]:
    """The label holder's side of a problem of one's own, and the gate in front of its attribute.

    Without `releases` nothing is opened: the problem is only tried.
    """
    settings = spec.settings(BambiSpec)
    if settings.own is None or settings.own.label_side is None:
        return None, []
    try:
        from parley.coordinator.bambi.own_problem import OwnProblem
        from parley.numerics.own_problem import LabelProblem, Sizes
    except ModuleNotFoundError as missing:
        raise ProblemsUnavailable(
            f"this coordinator has no {missing.name}, which a problem of one's own is written in: install it beside "
            "the coordinator, or leave `own.label_side` out"
        ) from missing
    groups: tuple[str, ...] = ()
    gates: list[LabelGate] = []
    attributes: UnbiasedTargets | None = None
    if settings.own.attribute is not None:
        beside = access.beside(settings.own.attribute)
        known = beside.load("softmax")
        if not np.array_equal(known.ids, labels.ids):
            raise RowsDiffer(f"{settings.own.attribute} is not about the rows of the labels: align them by id")
        groups = known.classes
        if releases is not None:
            gate = beside.gate(known, clean_loss("softmax", len(groups)), releases)
            gates, attributes = [gate], UnbiasedTargets(gate)
    side, sizes = settings.own.label_side, Sizes(len(labels), loss_of(settings, labels)[1], labels.classes, groups)
    problem = LabelProblem.load(side.path, side.options, sizes, loss, access.problem_imports)
    return OwnProblem(problem, settings, spec.seed, attributes), gates


@dataclass(frozen=True)
class UnbiasedTargets:
    """Noisy rows that leave the gate, freed of what their noise adds on average."""

    gate: LabelGate

    def target(self, release: int, rows: Rows) -> Array:
        """Rows of a release, paid for before they are returned."""
        return unbiased_target(self.gate.loss, self.gate.target(release, rows))


def evaluations(spec: RunSpec, access: LabelAccess, labels: Labels, rows: RowSets) -> dict[str, Evaluation]:
    """The ways out for figures on held-out rows, at the end and every so many iterations before it."""
    steps, every = spec.settings(BambiSpec).run_length, spec.evaluate_every
    times = 1 + (max(0, steps - 1) // every if every else 0)
    return {name: access.evaluation(labels, chosen, name, times) for name, chosen in rows.held_out.items()}


def loss_of(settings: BambiSpec, labels: Labels) -> tuple[Loss, int]:
    """The loss and the columns of the summed embedding."""
    outputs = len(labels.classes) if settings.loss == "softmax" else 1
    return clean_loss(settings.loss, outputs), outputs


def check(spec: RunSpec, access: LabelAccess, rows: CommonRows) -> None:
    """Refuse labels that do not fit the parties' rows, or a split that does not."""
    labels = access.load(spec.settings(BambiSpec).loss)
    check_rows(labels, rows.count, rows.digest, rows.party)
    access.check_size(labels)
    own_problem(spec, access, labels, loss_of(spec.settings(BambiSpec), labels)[0], None)
    access.class_weights(labels, np.arange(rows.count), spec.settings(BambiSpec).class_weights)
    evaluations(spec, access, labels, divide(spec.split, rows.count, stream(spec.seed, "split")))


def predictor(spec: RunSpec, access: LabelAccess) -> Predictor:
    """Scores from the summed embeddings of any rows."""
    settings = spec.settings(BambiSpec)
    labels = access.load(settings.loss)
    loss, outputs = loss_of(settings, labels)
    return Predictor(
        BambiForm(outputs),
        lambda first, count: Round(None, RowsForward("all", first, count)),
        lambda total: loss.predict(widened(total.reshape(-1, settings.columns(outputs)), outputs)),
        labels.classes,
    )


def foretell(spec: RunSpec, access: LabelAccess, _: Widths) -> Forecast | None:
    """What the run's rounds carry."""
    labels = access.load(spec.settings(BambiSpec).loss)
    rows = divide(spec.split, len(labels), stream(spec.seed, "split"))
    return forecast(spec, rows, loss_of(spec.settings(BambiSpec), labels)[1])


def head(spec: RunSpec) -> Head:
    """Probabilities, or the value itself."""
    loss = spec.settings(BambiSpec).loss
    return Head("identity", "real") if loss == "squared" else Head(loss, "classes")


ALGORITHM = CoordinatorAlgorithm(PROTOCOL, program, check, predictor, head, foretell)
