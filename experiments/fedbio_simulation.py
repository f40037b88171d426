"""Drive the FedBiO roles in one process: the same generator and the same steps that the services drive over gRPC.

Whatever crosses between the roles is turned into bytes and back, so that they share no memory here either.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from parley.coordinator.fedbio import rounds as coordinator
from parley.numerics.storm import Vector
from parley.party.fedbio import steps as party


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a simulated run ends with."""

    averages: coordinator.Averages
    states: Mapping[str, party.State]
    """Each party's state after the concluding instruction."""
    phases: int
    """Communication phases in all."""


@dataclass(frozen=True, slots=True)
class Received:
    """An instruction as it arrives at a party."""

    phase: party.Phase
    round_index: int
    mean: Vector | None


def simulate(
    settings: coordinator.Settings,
    parties: Mapping[str, party.Party],
    states: Mapping[str, party.State],
    rounds: int,
    observe: Callable[[coordinator.Report], bool] = lambda _: False,
) -> Outcome:
    """Run up to `rounds` rounds; `observe` sees every report and may end the run by returning True."""
    states = dict(states)
    averages = coordinator.Averages()
    phases = 0

    def answer(instruction: coordinator.Instruction) -> Vector:
        received = Received(instruction.phase, instruction.round_index, _cross(instruction.mean))
        total: Vector | None = None
        for name in instruction.participants:
            randomness = party.Randomness(settings.seed, name)
            states[name], vector = parties[name].contribute(states[name], received, randomness)
            total = vector.copy() if total is None else total + vector
        return np.empty(0) if total is None else np.frombuffer(total.tobytes())

    k = -1
    for k in range(rounds):
        round_ = coordinator.iteration(settings, k, averages)
        instruction = next(round_)
        while True:
            try:
                instruction = round_.send(answer(instruction))
            except StopIteration as finished:
                report: coordinator.Report = finished.value
                break
        averages, phases = report.averages, phases + report.phases
        if observe(report):
            break
    answer(coordinator.conclusion(settings, k, averages))
    return Outcome(averages, states, phases)


def _cross(vector: Vector | None) -> Vector | None:
    return None if vector is None else np.frombuffer(vector.tobytes()).copy()
