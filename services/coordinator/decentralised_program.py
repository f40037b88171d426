"""Decentralised runs at the coordinator: a clock that sends stretches of steps, and sums of measures. No vector."""

from collections.abc import Callable, Generator, Iterator
from math import sqrt
from typing import Any

import numpy as np
from google.protobuf.message import Message
from numpy.typing import NDArray

from parley.coordinator.bambi import Report
from parley.numerics.networks import check_strongly_connected, gossip_weights, links
from parley.privacy.decentralised_rounds import ACCURACY_LEVELS, PeerTraffic, Phase, Stretch, plan_of
from parley.privacy.release import Addend, OutcomeGate, Release
from parley.services.wire.decentralised_codec import decode_contribution, encode_instruction
from parley.services.wire.tensors import Blobs, MessageInvalid
from parley.spec.hgp import HgpSpec, PersonalisationSpec
from parley.spec.ldp_dsbo import LdpDsboSpec
from parley.spec.run import RunSpec

CHECKED_STEPS = 10_000
"""A time-varying network is checked for so many steps; beyond, its schedule is of the same kind."""

Rounds = Generator[Stretch, Any, None]


class DecentralisedCodec:
    """How a clock's stretches look on the wire, and who has said how much."""

    body = "decentralised"

    def __init__(self, parties: int) -> None:
        self.gate = OutcomeGate(lambda _: False)  # no label is ever released
        self.finish = Stretch("finish", 0)
        self._traffic: dict[int, PeerTraffic] = {}
        self._parties = parties

    def encode(self, number: int, release: Release[Stretch]) -> tuple[Message, Blobs]:
        """The instruction of a stretch."""
        return encode_instruction(number, release)

    def decode(self, message: Any, blobs: Blobs, release: Release[Stretch]) -> Addend | None:
        """A party's answer; what it said to its neighbours is noted."""
        addend, traffic = decode_contribution(message, blobs, release.content)
        if traffic.party >= self._parties:
            raise MessageInvalid(f"there is no party {traffic.party} in this run")
        self._traffic[traffic.party] = traffic
        return addend

    def traffic(self) -> dict[str, float]:
        """Messages and bytes between the parties, in this session."""
        return {
            "peer messages": float(sum(traffic.messages for traffic in self._traffic.values())),
            "peer bytes": float(sum(traffic.payload_bytes for traffic in self._traffic.values())),
        }


class HgpProgram(DecentralisedCodec):
    """The clock of HGP: inner problem, hyper-gradient, and again."""

    def __init__(self, spec: RunSpec) -> None:
        super().__init__(len(spec.parties))
        self._spec, self._train = spec, spec.settings(HgpSpec)

    @property
    def outputs(self) -> int:
        """Classes of the model."""
        return len(self._train.task.classes)

    def rounds(self, done: int, observe: Callable[[Report], None]) -> Rounds:
        """Every stretch of the run from outer iteration `done` on."""
        for k in range(done, self._train.outer.steps):
            yield from self._stretches("train", k, self._train.inner_steps)
            if self._train.has_hyper:
                yield from self._stretches("hyper_gradient", k, self._train.hyper_steps)
            last, reported = k + 1 == self._train.outer.steps, self.traffic()
            if last or due(k + 1, self._spec.evaluate_every):
                reported |= self._read((yield Stretch("evaluate", k)))
            observe(Report(k + 1, reported))
            if not last and due(k + 1, self._spec.checkpoint_every):
                yield Stretch("checkpoint", k + 1)
        yield self.finish

    def _stretches(self, phase: Phase, k: int, steps: int) -> Iterator[Stretch]:
        for first in range(0, steps, self._train.stretch):
            yield Stretch(phase, k, first, min(first + self._train.stretch, steps))

    def _read(self, total: Any) -> dict[str, float]:
        measures, levels = [float(value) for value in total[:8]], np.rint(np.asarray(total[8:], dtype=np.float64))
        loss, mistakes, rows, _, test_mistakes, test_rows, accuracy, squared = measures
        found = {"validation loss": loss / rows, "validation error": mistakes / rows}
        if test_rows > 0:
            found |= {"test error": test_mistakes / test_rows, "test mean accuracy": accuracy / self._parties}
        if levels.sum() > 0:  # only parties with test rows stand at a level
            found |= {
                "test mean accuracy": accuracy / float(levels.sum()),
                "test bottom-decile accuracy": bottom_decile(levels),
            }
        return found | ({"hyper-gradient norm": sqrt(max(squared, 0.0))} if self._train.has_hyper else {})


class LdpDsboProgram(DecentralisedCodec):
    """The clock of LDP-DSBO. Nothing is evaluated: a measure without noise would cost ε that nobody accounts for."""

    outputs = 2

    def __init__(self, spec: RunSpec) -> None:
        super().__init__(len(spec.parties))
        self._spec, self._train = spec, spec.settings(LdpDsboSpec)

    def rounds(self, done: int, observe: Callable[[Report], None]) -> Rounds:
        """Every stretch of the run from step `done` on; stretches end at checkpoints."""
        at, end, every = done, self._train.iterations, self._spec.checkpoint_every
        while at < end:
            last = min(at + self._train.stretch, end, *((every * (at // every + 1),) if every else ()))
            yield Stretch("agent_steps", 0, at, last)
            at = last
            observe(Report(at, self.traffic()))
            if at < end and due(at, every):
                yield Stretch("checkpoint", at)
        yield self.finish


def check_network(spec: RunSpec) -> None:
    """Refuse a network over which some party could never hear from some other one."""
    train = spec.train
    if isinstance(train, LdpDsboSpec):
        plan = plan_of(train.network, [entry.name for entry in spec.parties], spec.seed)
        check_strongly_connected(plan, window=1, steps=1)
        gossip_weights(links(plan, 0), train.weight)
    if isinstance(train, HgpSpec):
        if isinstance(train.task, PersonalisationSpec) and train.task.method == "local":
            return
        plan = plan_of(train.network, [entry.name for entry in spec.parties], spec.seed)
        steps = min(train.steps_per_iteration * train.outer.steps, CHECKED_STEPS)
        check_strongly_connected(plan, window=train.network.window, steps=steps)


def bottom_decile(levels: NDArray[np.float64]) -> float:
    """The tenth percentile over parties of their accuracies, to 1/400, from how many stand at each level."""
    accuracies = np.repeat(np.arange(len(levels)) / ACCURACY_LEVELS, levels.astype(np.int64))
    return float(np.quantile(accuracies, 0.1))


def due(k: int, every: int) -> bool:
    """Whether something that is done `every` so many iterations is due after k of them."""
    return every > 0 and k % every == 0
