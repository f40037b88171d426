"""AsySQN at the coordinator: labels behind their gate, rounds, slopes for single parties, and predictions."""

import json
import math
import threading
from collections.abc import Callable, Generator
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
from google.protobuf.message import Message
from numpy.typing import NDArray
from scipy.special import expit

from parley.coordinator.asysqn import rounds as schedule
from parley.coordinator.asysqn.watch import Watch
from parley.coordinator.forecasts import Forecast, Trips, Widths, evaluations, kept
from parley.coordinator.labels import LabelAccess, ReleasePlan, check_rows
from parley.coordinator.programs import CommonRows, CoordinatorAlgorithm, Head, Observer, Predictor
from parley.numerics.arrays import Vector
from parley.numerics.gradient_estimators import Estimator
from parley.numerics.linear_losses import loss_named, predict_sign
from parley.numerics.losses import Logistic, Loss, Squared
from parley.numerics.streams import stream
from parley.numerics.weighted_loss import weighted
from parley.privacy.release import Addend, OutcomeGate, Release
from parley.protocols.asysqn.batches import batch_rows, snapshots_before, watched_rows
from parley.protocols.asysqn.codec import (
    PROTOCOL,
    decode_contribution,
    decode_question,
    encode_instruction,
    encode_slopes,
)
from parley.protocols.asysqn.messages import AllRows, AsysqnRound, Batch, Derivative, Evaluate, RowsName
from parley.protocols.asysqn.settings import AsysqnSpec
from parley.protocols.rounds import Finish
from parley.protocols.tensor.codec import Blobs, MessageInvalid
from parley.spec.rows import RowSets, divide
from parley.spec.run import RunSpec
from parley.tables.loading import Labels

PARTIAL_BYTES = 40
"""What a partial sum between parties holds beside its numbers."""
STRIDE = 1 << 32
"""Numbers of label releases that each requester has: one for its snapshots, then one for each of its steps."""


class AsysqnForm:
    """How AsySQN's rounds look on the wire."""

    outputs = 1

    def encode(self, number: int, release: Release[AsysqnRound]) -> tuple[Message, Blobs]:
        """The instruction of a round."""
        return encode_instruction(number, release)

    def decode(self, message: Any, blobs: Blobs, release: Release[AsysqnRound]) -> Addend | None:
        """A party's contribution."""
        return decode_contribution(message, blobs, release.content.ask)[0]


class AsysqnProgram(AsysqnForm):
    """One run of AsySQN."""

    finish = AsysqnRound(None, Finish())

    def __init__(self, spec: RunSpec, access: LabelAccess) -> None:
        train = spec.settings(AsysqnSpec)
        labels = access.load(train.loss)
        sets = divide(spec.split, len(labels), stream(spec.seed, "split"))
        watched = watched_rows(spec.seed, sets.trained, train.watch_rows)
        self._holder = None
        if train.labels_at == "coordinator":
            self._holder = LabelHolder(spec, access, labels, sets)
        self.gate = OutcomeGate(self._holder.is_paid if self._holder else lambda _: False)
        targets = (train.target,) if train.target is not None else ()
        self._problem = schedule.Problem(
            loss=loss_named(train.loss),
            estimator=Estimator(train.estimator),
            regularisation=train.regularisation,
            snapshot_every=train.snapshot_every,
            synchronous=not train.is_asynchronous,
            steps=train.steps,
            parties=[entry.name for entry in spec.parties],
            watched=np.concatenate([watched, *sets.held_out.values()]),
            trained=len(watched),
            labels=signed(labels),
            labelled_loss=self._holder,
            stops=bool(targets),
            evaluate_every=spec.evaluate_every,
            checkpoint_every=spec.checkpoint_every,
            watch=Watch(targets=targets, optimum=train.optimum),
            figures=figures_of(spec, access, labels, sets),
            classes=labels.classes,
            measures=access.measures,
            weights=access.class_weights(labels, sets.trained, train.class_weights),
        )

    def rounds(self, done: int, observe: Observer) -> Generator[AsysqnRound, Any, None]:
        """Every round of the run."""
        return schedule.rounds(self._problem, done, observe)

    def pause_seconds(self, current: AsysqnRound) -> float:
        """As the schedule has it."""
        return current.pause_seconds

    def decode(self, message: Any, blobs: Blobs, release: Release[AsysqnRound]) -> Addend | None:
        """A party's contribution; how far the party is, is noted."""
        addend, progress = decode_contribution(message, blobs, release.content.ask)
        if progress.party >= len(self._problem.parties):
            raise MessageInvalid(f"there is no party {progress.party} in this run")
        self._problem.progress[progress.party] = progress
        return addend

    def answer(self, party: int, question: Any, blobs: Blobs) -> tuple[Message, Blobs]:
        """∂L/∂θ for one party's own step."""
        if self._holder is None:
            raise MessageInvalid("the parties of this run have labels of their own")
        rows, theta = decode_question(question, blobs)
        return encode_slopes(self.gate.release(self._holder.derivative(party, rows, theta)))

    def kept(self) -> bytes:
        """What was seen so far: targets reached and the best objective."""
        watch = self._problem.watch
        reached = {str(target): count for target, count in watch.reached.items()}
        return json.dumps({"rounds": watch.rounds, "best": _finite(watch.best), "reached": reached}).encode()

    def restore(self, content: bytes) -> None:
        """Go on with what was seen."""
        kept = json.loads(content)
        reached = MappingProxyType({float(target): int(count) for target, count in kept["reached"].items()})
        best = math.inf if kept["best"] is None else float(kept["best"])
        schedule.replaced_watch(self._problem, rounds=int(kept["rounds"]), best=best, reached=reached)


def figures_of(spec: RunSpec, access: LabelAccess, labels: Labels, sets: RowSets) -> schedule.Figures:
    """The ways out for figures on the rows that are watched."""
    train, every = spec.settings(AsysqnSpec), spec.evaluate_every
    if train.target is not None and access.evaluations is not None:
        access.evaluations.refuse_exact("train.target")
    times = 2 + (train.steps // every if every else 0)
    watched = watched_rows(spec.seed, sets.trained, train.watch_rows)
    return schedule.Figures(
        access.evaluation(labels, watched, "training", times),
        {name: (len(rows), access.evaluation(labels, rows, name, times)) for name, rows in sets.held_out.items()},
    )


class LabelHolder:
    """Turns sums of θ into slopes, through the gate of the labels. Called for several parties at once."""

    def __init__(self, spec: RunSpec, access: LabelAccess, labels: Labels, sets: RowSets) -> None:
        self._train, self._seed, self._trained = spec.settings(AsysqnSpec), spec.seed, sets.trained
        self._names = [entry.name for entry in spec.parties]
        self._turn = threading.Lock()
        released = ReleasePlan(self._released, STRIDE * (len(self._names) + 1), self._trained)
        self._gate = access.gate(labels, loss_for(self._train), released)
        weights = access.class_weights(labels, self._trained, self._train.class_weights)
        self._loss = weighted(self._gate.loss, weights)

    def is_paid(self, release: int) -> bool:
        """Whether the ledger covers a release."""
        return self._gate.is_paid(release)

    def derivative(self, requester: int | None, rows: RowsName, theta: Vector) -> Derivative:
        """∂L/∂θ on the rows of a step, paid for before it is returned; the same step is paid once."""
        if isinstance(rows, Batch) and rows.t + 1 >= STRIDE:  # its number would be a release of the next requester
            raise MessageInvalid(f"step {rows.t} is beyond the {STRIDE - 1} steps that a party can have slopes for")
        if isinstance(rows, Batch) and rows.k != self._snapshots(rows.t):
            raise MessageInvalid(f"step {rows.t} comes after {self._snapshots(rows.t)} snapshots, not {rows.k}")
        numbers = self._numbers(requester, rows)
        if theta.shape != numbers.shape:
            raise MessageInvalid(f"{len(theta)} sums came for a batch of {len(numbers)} rows")
        release = self._release(requester, rows)
        with self._turn:
            target = self._gate.target(release, numbers)
        mean = self._loss.gradient(theta[:, None], target)  # of the mean loss
        return Derivative(mean[:, 0] * len(numbers), release)

    def _numbers(self, requester: int | None, rows: RowsName) -> NDArray[np.int64]:
        """The rows, among all labels, that a name stands for."""
        if isinstance(rows, AllRows):
            return self._trained
        who = None if requester is None else self._names[requester]
        return self._trained[batch_rows(self._seed, who, rows, rows=len(self._trained), size=self._train.batch)]

    def _release(self, requester: int | None, rows: RowsName) -> int:
        """A step's place in the requester's sequence of sums, which follows from the estimator alone."""
        block = 0 if requester is None else requester + 1
        return block * STRIDE + (0 if isinstance(rows, AllRows) else rows.t + 1)

    def _released(self, release: int) -> NDArray[np.int64]:
        block, place = divmod(release, STRIDE)
        if place == 0:
            return self._trained
        rows = Batch(self._snapshots(place - 1), place - 1)
        return self._numbers(None if block == 0 else block - 1, rows)

    def _snapshots(self, t: int) -> int:
        return snapshots_before(Estimator(self._train.estimator), self._train.snapshot_every, t)


def loss_for(train: AsysqnSpec) -> Loss:
    """The loss as label mechanisms know it."""
    return Squared() if train.loss == "ridge" else Logistic()


def signed(labels: Labels) -> NDArray[np.float64]:
    """Targets, or ±1 with the second class as +1."""
    if not labels.classes:
        return np.asarray(labels.values, dtype=np.float64)
    return np.where(labels.values == 1, 1.0, -1.0)


def prediction_round(first: int, count: int) -> AsysqnRound:
    """Ask for θ of some rows of a prediction's table."""
    return AsysqnRound(None, Evaluate("all", first, count))


def scorer(spec: RunSpec) -> Callable[[Vector], Vector]:
    """Scores from θ: a probability, a decision, or the value itself."""
    match spec.settings(AsysqnSpec).loss:
        case "logistic":
            return lambda theta: np.asarray(expit(theta))[:, None]
        case "squared_hinge":
            return lambda theta: (predict_sign(np.asarray(theta, np.float64)) > 0).astype(np.float64)[:, None]
    return lambda theta: theta[:, None]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def check(spec: RunSpec, access: LabelAccess, rows: CommonRows) -> None:
    """Refuse labels that do not fit the parties' rows, or a split that does not."""
    labels = access.load(spec.settings(AsysqnSpec).loss)
    check_rows(labels, rows.count, rows.digest, rows.party)
    access.check_size(labels)
    access.class_weights(labels, np.arange(rows.count), spec.settings(AsysqnSpec).class_weights)
    figures_of(spec, access, labels, divide(spec.split, rows.count, stream(spec.seed, "split")))


def predictor(spec: RunSpec, access: LabelAccess) -> Predictor:
    """Scores from θ of any rows."""
    labels = access.load(spec.settings(AsysqnSpec).loss)
    return Predictor(AsysqnForm(), prediction_round, scorer(spec), labels.classes)


def foretell(spec: RunSpec, access: LabelAccess, _: Widths) -> Forecast | None:
    """What the rounds of a synchronous run carry: θ of a batch up, and what becomes of it down, 8 bytes each."""
    train = spec.settings(AsysqnSpec)
    if train.is_asynchronous:
        return None
    sets = divide(spec.split, len(access.load(train.loss)), stream(spec.seed, "split"))
    rows, steps = len(sets.trained), train.steps
    period = {"sgd": math.inf, "saga": math.inf, "svrg": train.snapshot_every + 1}[train.estimator]
    snapshots = min(steps, math.ceil(steps / period) if train.estimator == "svrg" else int(train.estimator == "saga"))
    batch = min(train.batch, rows)
    watched = len(watched_rows(spec.seed, sets.trained, train.watch_rows)) + sum(map(len, sets.held_out.values()))
    checkpoints = kept(steps, spec.checkpoint_every)
    # Of both trees, all but the roots send a partial sum to another party.
    edges = 2 * (len(spec.parties) - 1) if spec.privacy.aggregation.kind == "two_tree" else 0
    return [
        *(
            replace(trips, between=edges * (8 * trips.summed + PARTIAL_BYTES))
            for trips in (
                Trips(snapshots, 8 * rows, rows, 8),
                Trips(steps - snapshots, 8 * batch, batch, 8),
                Trips(evaluations(steps, spec.evaluate_every), 0.0, watched + 1, 8),
            )
        ),
        replace(checkpoints, count=checkpoints.count + 1),  # the last step has one in any case
    ]


def head(spec: RunSpec) -> Head:
    """A probability, a decision, or the value itself."""
    match spec.settings(AsysqnSpec).loss:
        case "logistic":
            return Head("logistic", "classes")
        case "squared_hinge":
            return Head("sign", "classes")
    return Head("identity", "real")


ALGORITHM = CoordinatorAlgorithm(PROTOCOL, AsysqnProgram, check, predictor, head, foretell)
