"""BAMBI at the coordinator: labels behind their gate, rounds, and how the saved models predict."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf.message import Message

from parley.coordinator.bambi.course import Course
from parley.coordinator.bambi.forecast import forecast
from parley.coordinator.bambi.local_rounds import LocalPlan, LocalRounds, Pace
from parley.coordinator.bambi.problem import Plan, Problem
from parley.coordinator.bambi.rounds import BilevelRounds
from parley.coordinator.forecasts import Forecast
from parley.coordinator.labels import LabelAccess, ReleasePlan, check_rows
from parley.coordinator.programs import CommonRows, CoordinatorAlgorithm, Observer, Predictor
from parley.numerics.arrays import Vector
from parley.numerics.losses import Loss, clean_loss
from parley.numerics.streams import stream
from parley.privacy.evaluations import Evaluation
from parley.privacy.release import Addend, OutcomeGate, Release
from parley.protocols.bambi.codec import PROTOCOL, decode_contribution, encode_instruction
from parley.protocols.bambi.columns import crossing_columns, widened
from parley.protocols.bambi.messages import Round, RowsForward
from parley.protocols.bambi.settings import BambiSpec
from parley.protocols.rounds import Finish
from parley.protocols.tensor.codec import Blobs
from parley.spec.rows import RowSets, divide
from parley.spec.run import RunSpec
from parley.tables.loading import Labels


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
        self.gate, self._rounds = gate, BilevelRounds(problem)

    def rounds(self, done: int, observe: Observer) -> Generator[Round, Vector, None]:
        """Every round of the run."""
        return self._rounds.rounds(done, observe)

    def kept(self) -> bytes:
        """How the run is going."""
        return self._rounds.course.encoded()

    def restore(self, content: bytes) -> None:
        """Go on as it was kept."""
        self._rounds.course = Course.decoded(content)


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
    gate = access.gate(labels, loss, ReleasePlan(plan.released_rows, plan.releases, np.union1d(rows.lower, rows.upper)))
    problem = Problem(
        plan,
        gate.loss,
        gate,
        outputs,
        spec.dtype,
        spec.evaluate_every,
        spec.checkpoint_every,
        evaluations(spec, access, labels, rows),
        settings.sends_half(spec.dtype),
    )
    return (LocalProgram if local else BambiProgram)(problem, OutcomeGate(gate.is_paid, gate.is_known_paid))


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
    evaluations(spec, access, labels, divide(spec.split, rows.count, stream(spec.seed, "split")))


def predictor(spec: RunSpec, access: LabelAccess) -> Predictor:
    """Scores from the summed embeddings of any rows."""
    settings = spec.settings(BambiSpec)
    labels = access.load(settings.loss)
    loss, outputs = loss_of(settings, labels)
    return Predictor(
        BambiForm(outputs),
        lambda first, count: Round(None, RowsForward("all", first, count)),
        lambda total: loss.predict(widened(total.reshape(-1, crossing_columns(outputs)), outputs)),
        labels.classes,
    )


def foretell(spec: RunSpec, access: LabelAccess) -> Forecast | None:
    """What the run's rounds carry."""
    labels = access.load(spec.settings(BambiSpec).loss)
    rows = divide(spec.split, len(labels), stream(spec.seed, "split"))
    return forecast(spec, rows, loss_of(spec.settings(BambiSpec), labels)[1])


ALGORITHM = CoordinatorAlgorithm(PROTOCOL, program, check, predictor, foretell)
