"""What a driver needs of an algorithm at the coordinator."""

from collections.abc import Callable, Generator, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from google.protobuf.message import Message

import parley.coordinator.bambi as bambi
from parley.numerics.streams import stream
from parley.privacy.asysqn_rounds import AsysqnRound
from parley.privacy.fedbio_rounds import AveragingRound
from parley.privacy.ledger import Ledger
from parley.privacy.release import Addend, OutcomeGate, Release
from parley.privacy.rounds import Checkpoint, Finish, Round, RowsForward, Vector
from parley.services.coordinator.asysqn_program import AsysqnCodec, AsysqnProgram, prediction_round, scorer
from parley.services.coordinator.decentralised_program import HgpProgram, LdpDsboProgram, check_network
from parley.services.coordinator.fedbio_program import FedbioProgram
from parley.services.coordinator.labels import LabelShelf, check_rows, loss_of, make_gate
from parley.services.coordinator.sessions import Codec
from parley.services.wire.bambi_codec import decode_contribution, encode_instruction
from parley.services.wire.tensors import Blobs
from parley.spec.bambi import BambiSpec
from parley.spec.rows import divide
from parley.spec.run import RunSpec
from parley.tables.loading import Labels


class Program(Codec, Protocol):
    """An algorithm at the coordinator: a generator of rounds, and how rounds look on the wire."""

    gate: OutcomeGate

    @property
    def finish(self) -> Any:
        """The round that makes every party save its model."""

    def rounds(self, done: int, observe: bambi.Observer) -> Generator[Any, Any, None]:
        """Every round from iteration `done` + 1 on."""


@runtime_checkable
class KeepingProgram(Protocol):
    """A program with state of its own, which is committed with every checkpoint."""

    def kept(self) -> bytes:
        """The state after the last round."""

    def restore(self, content: bytes) -> None:
        """Go on from a state that was kept."""


@dataclass(frozen=True)
class Rows:
    """What the parties say about their rows."""

    count: int
    digest: bytes
    party: str


@dataclass
class BambiCodec:
    """How BAMBI's rounds look on the wire."""

    outputs: int
    """Columns of the summed embedding."""
    body: str = "bambi"

    def encode(self, number: int, release: Release[Round]) -> tuple[Message, Blobs]:
        """The instruction of a round."""
        return encode_instruction(number, release)

    def decode(self, message: Any, blobs: Blobs, release: Release[Round]) -> Addend | None:
        """A party's contribution."""
        return decode_contribution(message, blobs, release.content.ask)


class BambiProgram(BambiCodec):
    """BAMBI: labels behind their gate, rounds from `parley.coordinator.bambi`."""

    finish = Round(None, Finish())

    def __init__(self, spec: RunSpec, run_id: str, labels: Labels, ledger: Ledger, key: bytes) -> None:
        rows = divide(spec.split, len(labels), stream(spec.seed, "split"))
        plan = bambi.Plan(spec.settings(BambiSpec), rows, spec.seed)
        labels_gate = make_gate(spec, labels, plan, ledger, key, run_id)
        super().__init__(loss_of(spec, labels)[1])
        self.gate = OutcomeGate(labels_gate.is_paid)
        self._problem = bambi.Problem(
            plan,
            labels_gate.loss,
            labels_gate,
            self.outputs,
            spec.dtype,
            spec.evaluate_every,
            spec.checkpoint_every,
        )

    def rounds(self, done: int, observe: bambi.Observer) -> Generator[Round, Vector, None]:
        """Every round of the run."""
        return bambi.rounds(self._problem, done, observe)


def checkpoint_of(current: Any) -> int | None:
    """The checkpoint that a round asks for."""
    if isinstance(current, AveragingRound):
        return current.k if current.phase == "checkpoint" else None
    return current.ask.k if isinstance(current.ask, Checkpoint) else None


def round_of(current: AveragingRound) -> int:
    """The round that a phase belongs to, as people count: from 1."""
    return current.k + 1 if current.summed else current.k


def kind_of(current: Any) -> Hashable:
    """What tells rounds after which the coordinator has more or less to do apart."""
    if isinstance(current, AveragingRound):
        return current.phase
    if isinstance(current, AsysqnRound):
        return object()  # asleep between looks where parties go on by themselves: never in the event loop
    return type(current.ask).__name__, getattr(current.ask, "count", None)


def is_last(current: Any) -> bool:
    """Whether a round ends the run."""
    return current.phase == "finish" if isinstance(current, AveragingRound) else isinstance(current.ask, Finish)


@dataclass(frozen=True)
class Predictor:
    """How the models that the parties saved predict together."""

    codec: Codec
    ask: Callable[[int, int], Any]
    """The round that sums over so many rows from the first on."""
    scores: Callable[[Vector], Vector]
    """Scores, (rows, outputs), from a sum."""
    classes: Sequence[str]


class ProgramShelf:
    """Makes the program of a run: data checked, labels loaded."""

    def __init__(self, labels: LabelShelf, ledger: Ledger, label_key: bytes) -> None:
        self._labels, self._ledger, self._label_key = labels, ledger, label_key

    def check(self, spec: RunSpec, rows: Rows) -> None:
        """Refuse labels that do not fit the parties' rows; changes and spends nothing."""
        match spec.train.algorithm:
            case "bambi" | "asysqn":
                check_rows(self._labels.load(spec), rows.count, rows.digest, rows.party)
                divide(spec.split, rows.count, stream(spec.seed, "split"))
            case "hgp" | "ldp_dsbo":
                check_network(spec)

    def predictor(self, spec: RunSpec) -> Predictor:
        """How a run's saved models predict together."""
        labels = self._labels.load(spec)
        if spec.train.algorithm == "asysqn":
            return Predictor(AsysqnCodec(), prediction_round, scorer(spec), labels.classes)
        loss, outputs = loss_of(spec, labels)
        return Predictor(
            BambiCodec(outputs),
            lambda first, count: Round(None, RowsForward("all", first, count)),
            lambda total: loss.predict(total.reshape(-1, outputs)),
            labels.classes,
        )

    def make(self, spec: RunSpec, run_id: str) -> Program:
        """The program of a run."""
        match spec.train.algorithm:
            case "fedbio":
                return FedbioProgram(spec)
            case "hgp":
                return HgpProgram(spec)
            case "ldp_dsbo":
                return LdpDsboProgram(spec)
            case "asysqn":
                return AsysqnProgram(spec, run_id, self._labels.load(spec), self._ledger, self._label_key)
            case "bambi":
                return BambiProgram(spec, run_id, self._labels.load(spec), self._ledger, self._label_key)
