"""The FedBiO family at the coordinator: averages of secure sums, and nothing else of anyone's rows."""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from google.protobuf.message import Message
from safetensors.numpy import load, save

import parley.coordinator.fedbio.rounds as fedbio
from parley.coordinator.forecasts import Forecast, Trips, Widths, evaluations, kept, network_size, widths_of
from parley.coordinator.labels import LabelAccess
from parley.coordinator.programs import CoordinatorAlgorithm, LabelFreeProgram, Observer, Report, due
from parley.numerics.metrics import AVERAGED
from parley.privacy.release import Addend, Release
from parley.protocols.fedbio.codec import PROTOCOL, decode_contribution, encode_instruction
from parley.protocols.fedbio.messages import AveragingRound
from parley.protocols.fedbio.settings import CleaningSpec, FedbioSpec, RepresentationSpec
from parley.protocols.tensor.codec import Blobs
from parley.spec.run import RunSpec

Rounds = Generator[AveragingRound, Any, None]


@dataclass(frozen=True)
class Length:
    """How long a run is, and what it does now and then."""

    rounds: int
    evaluate_every: int = 0
    checkpoint_every: int = 0


class FedbioProgram(LabelFreeProgram):
    """Rounds of a run; the averages are its only state, kept with every checkpoint."""

    def __init__(self, settings: fedbio.Settings, length: Length, *, outputs: int = 0, dtype: str = "float64") -> None:
        """`outputs` are the model's classes; averages travel as `dtype`."""
        self._settings, self._length, self._dtype = settings, length, dtype
        self.outputs = outputs
        self.averages = fedbio.Averages()

    @property
    def finish(self) -> AveragingRound:
        """The round that makes every party take over the last average and save its model."""
        return fedbio.finish(self._settings, self._length.rounds, self.averages)

    def encode(self, number: int, release: Release[AveragingRound]) -> tuple[Message, Blobs]:
        """The instruction of a phase."""
        return encode_instruction(number, release, self._dtype)

    def decode(self, message: Any, blobs: Blobs, release: Release[AveragingRound]) -> Addend | None:
        """A party's contribution."""
        return decode_contribution(message, blobs, release.content)

    def expect_rejoiners(self) -> None:
        """Send each round all averages: a party that left in an attempt before may begin anywhere."""
        self._settings = replace(self._settings, newcomers=True)

    def kept(self) -> bytes:
        """The averages, as they are committed with a checkpoint."""
        named = {"variables": self.averages.variables, "momenta": self.averages.momenta}
        content: bytes = save({name: value for name, value in named.items() if value is not None})
        return content

    def restore(self, content: bytes) -> None:
        """Go on from averages that were kept."""
        arrays = load(content)
        self.averages = fedbio.Averages(arrays.get("variables"), arrays.get("momenta"))

    def rounds(self, done: int, observe: Observer) -> Rounds:
        """Every phase of the run from round `done` on."""
        length = self._length
        for k in range(done, length.rounds):
            progress = yield from fedbio.iteration(self._settings, k, self.averages)
            self.averages = progress.averages
            reported = {} if np.isnan(progress.movement) else {"movement": progress.movement}
            last = k + 1 == length.rounds
            if last or due(k + 1, length.evaluate_every):
                reported |= yield from self._evaluated(k)
            observe(Report(k + 1, reported))
            if not last and due(k + 1, length.checkpoint_every):
                yield AveragingRound("checkpoint", k + 1, self._settings.everyone)
        yield self.finish

    def _evaluated(self, k: int) -> Generator[AveragingRound, Any, dict[str, float]]:
        metrics = yield from fedbio.evaluation(self._settings, k, self.averages)
        found = {"validation loss": metrics.loss, "validation error": metrics.error}
        known = {"test error": metrics.test_error, "detection AUC": metrics.auc}
        judged = "validation" if metrics.test_error is None else "test"
        found |= {f"{judged} {name}": value for name, value in metrics.averages.items()}
        return found | {name: value for name, value in known.items() if value is not None}


def program(spec: RunSpec, _: LabelAccess) -> FedbioProgram:
    """The program of a run."""
    train = spec.settings(FedbioSpec)
    settings = fedbio.Settings(len(spec.parties), train.has_momenta, train.parties_per_round, spec.seed, train.warm)
    length = Length(train.rounds, spec.evaluate_every, spec.checkpoint_every)
    outputs = train.task.ways if isinstance(train.task, RepresentationSpec) else len(train.task.classes)
    return FedbioProgram(settings, length, outputs=outputs, dtype=spec.dtype)


def foretell(spec: RunSpec, _: LabelAccess, widths: Widths) -> Forecast:
    """What the rounds carry: the average down, an addend of the same length up; momenta once more."""
    train, parties = spec.settings(FedbioSpec), len(spec.parties)
    averaged = 2 * len(AVERAGED) if spec.evaluation.averages else 0
    size, sampled = _shared_size(train, widths, spec), train.parties_per_round
    number = np.dtype(spec.dtype).itemsize
    # Who was not in the round before needs the variables beside the momenta.
    opening = size * (2 if train.has_momenta and sampled not in (None, parties) else 1)
    checkpoints = kept(train.rounds, spec.checkpoint_every, last=False).count - 1
    bilevel = train.rounds - train.warm
    momenta = [Trips(bilevel, number * size, size, participants=sampled)] if train.has_momenta else []
    # Momenta come with the averages from the second round on that has them.
    plain = min(train.warm, train.rounds - 1)
    return [
        Trips(1, 0.0, size, participants=sampled),
        Trips(plain, number * size, size, participants=sampled),
        Trips(train.rounds - 1 - plain, number * opening, size, participants=sampled),
        *momenta,
        Trips(evaluations(train.rounds, spec.evaluate_every), number * size, fedbio.MEASURES + averaged, 8),
        Trips(checkpoints, keeps=True),
        Trips(1, number * size, keeps=True),
    ]


def _shared_size(train: FedbioSpec, widths: Widths, spec: RunSpec) -> int:
    """Numbers that are averaged: the model and u, coefficients that are shared, or convolutions' filters and biases."""
    task = train.task
    if not isinstance(task, RepresentationSpec):
        columns, classes = max(widths_of(widths, [entry.name for entry in spec.parties])), len(task.classes)
        if isinstance(task, CleaningSpec):
            return 2 * network_size((columns, *task.hidden, classes))
        return {"columns": columns, "classes": classes, "one": 1}[task.coefficients] + 2 * (columns + 1) * classes
    depths = (1, *[task.filters] * (task.layers - 1))
    return sum((9 * before + 1) * task.filters for before in depths)


def as_first(train: Mapping[str, Any]) -> Mapping[str, Any]:
    """The first release had no warm rounds; all its other steps are those of today."""
    return {"warm_rounds": 0, **train}


ALGORITHM = CoordinatorAlgorithm(PROTOCOL, program, forecast=foretell, as_first=as_first)
