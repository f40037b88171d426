"""The FedBiO family at the coordinator: averages of secure sums, and nothing else of anyone's rows."""

from collections.abc import Generator
from dataclasses import replace
from typing import Any

import numpy as np
from google.protobuf.message import Message
from safetensors.numpy import load, save

import parley.coordinator.fedbio.rounds as fedbio
from parley.coordinator.labels import LabelAccess
from parley.coordinator.programs import CoordinatorAlgorithm, Observer, Report
from parley.numerics.participation import participants
from parley.privacy.release import Addend, OutcomeGate, Release
from parley.protocols.fedbio.codec import PROTOCOL, decode_contribution, encode_instruction
from parley.protocols.fedbio.messages import AveragingRound, Phase
from parley.protocols.fedbio.settings import CleaningSpec, FedbioSpec
from parley.protocols.tensor.codec import Blobs
from parley.spec.run import RunSpec

Rounds = Generator[AveragingRound, Any, None]


class FedbioProgram:
    """Rounds of a run; the averages are its only state, kept with every checkpoint."""

    def __init__(self, spec: RunSpec, _: LabelAccess) -> None:
        self._spec, self._train = spec, spec.settings(FedbioSpec)
        names = tuple(entry.name for entry in spec.parties)
        self._settings = fedbio.Settings(names, self._train.has_momenta, self._train.parties_per_round, spec.seed)
        self._averages = fedbio.Averages()
        self.gate = OutcomeGate(lambda _: False)  # no label is ever released

    @property
    def outputs(self) -> int:
        """Classes of the model, or of a task."""
        task = self._train.task
        return len(task.classes) if isinstance(task, CleaningSpec) else task.ways

    @property
    def finish(self) -> AveragingRound:
        """The round that makes every party take over the last average and save its model."""
        return self._to_all("finish", self._train.rounds, self._averages.variables)

    def encode(self, number: int, release: Release[AveragingRound]) -> tuple[Message, Blobs]:
        """The instruction of a phase."""
        return encode_instruction(number, release, self._spec.dtype)

    def decode(self, message: Any, blobs: Blobs, release: Release[AveragingRound]) -> Addend | None:
        """A party's contribution."""
        return decode_contribution(message, blobs, release.content)

    def expect_rejoiners(self) -> None:
        """Send each round all averages: a party that left in an attempt before may begin anywhere."""
        self._settings = replace(self._settings, newcomers=True)

    def kept(self) -> bytes:
        """The averages, as they are committed with a checkpoint."""
        named = {"variables": self._averages.variables, "momenta": self._averages.momenta}
        content: bytes = save({name: value for name, value in named.items() if value is not None})
        return content

    def restore(self, content: bytes) -> None:
        """Go on from averages that were kept."""
        arrays = load(content)
        self._averages = fedbio.Averages(arrays.get("variables"), arrays.get("momenta"))

    def rounds(self, done: int, observe: Observer) -> Rounds:
        """Every phase of the run from round `done` on."""
        for k in range(done, self._train.rounds):
            report = yield from self._translated(fedbio.iteration(self._settings, k, self._averages))
            self._averages = report.averages
            reported = {} if np.isnan(report.movement) else {"movement": report.movement}
            last = k + 1 == self._train.rounds
            if last or _due(k + 1, self._spec.evaluate_every):
                reported |= yield from self._evaluated(k)
            observe(Report(k + 1, reported))
            if not last and _due(k + 1, self._spec.checkpoint_every):
                yield self._to_all("checkpoint", k + 1)
        yield self.finish

    def _evaluated(self, k: int) -> Generator[AveragingRound, Any, dict[str, float]]:
        metrics = yield from self._translated(fedbio.evaluation(self._settings, k, self._averages))
        found = {"validation loss": metrics.loss, "validation error": metrics.error}
        known = {"test error": metrics.test_error, "detection AUC": metrics.auc}
        return found | {name: value for name, value in known.items() if value is not None}

    def _translated(self, phases: Generator[fedbio.Instruction, Any, Any]) -> Generator[AveragingRound, Any, Any]:
        """The role's instructions, with parties by index, as they cross."""
        answer = None
        while True:
            try:
                asked = phases.send(answer)
            except StopIteration as finished:
                return finished.value
            index = {name: i for i, name in enumerate(self._settings.parties)}
            present = tuple(index[name] for name in asked.participants)
            answer = yield AveragingRound(_crossing(asked.phase), asked.round_index, present, asked.mean)

    def _to_all(self, phase: Phase, k: int, mean: Any = None) -> AveragingRound:
        everyone = participants(self._spec.seed, k, len(self._settings.parties), None)
        return AveragingRound(phase, k, everyone, mean)


def _crossing(phase: fedbio.Phase) -> Phase:
    return "finish" if phase == "conclude" else phase


def _due(k: int, every: int) -> bool:
    return every > 0 and k % every == 0


ALGORITHM = CoordinatorAlgorithm(PROTOCOL, FedbioProgram)
