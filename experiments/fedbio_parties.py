"""The FedBiO family in one process, on objectives that an experiment makes: the product's program and roles."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from parley.coordinator.fedbio import rounds as coordinator
from parley.coordinator.fedbio.program import FedbioProgram, Length
from parley.numerics.storm import Vector
from parley.party.fedbio import steps as party
from parley.party.fedbio.objectives import BilevelObjective
from parley.party.fedbio.role import FedbioRole, Membership
from parley.protocols.fedbio.codec import PROTOCOL
from parley.simulation import Simulation


@dataclass(frozen=True)
class Given:
    """A task (`parley.party.fedbio.tasks.Task`) whose objective and start are given."""

    objective: BilevelObjective
    x: Vector
    y: Vector

    def start(self, generator: np.random.Generator) -> tuple[Vector, Vector]:  # noqa: ARG002 (nothing is drawn)
        """The given point."""
        return self.x, self.y

    def model(self, x: Vector, y: Vector) -> Mapping[str, Vector]:
        """Both levels."""
        return {"x": x, "y": y}

    def findings(self, x: Vector, y: Vector) -> Mapping[str, bytes]:  # noqa: ARG002
        """Nothing: nobody owns these rows."""
        return {}


@dataclass(frozen=True)
class Trained:
    """What a run ends with."""

    averages: coordinator.Averages
    states: Sequence[party.State]
    """Each party's state."""
    phases: int
    """Sums of variables or momenta in all."""


def from_zero(objectives: Sequence[BilevelObjective]) -> list[Given]:
    """Tasks that start at zero."""
    return [Given(each, np.zeros(each.upper_size), np.zeros(each.lower_size)) for each in objectives]


def train(
    tasks: Sequence[Given],
    settings: party.Settings,
    rounds: int,
    *,
    sampled: int | None = None,
    seed: int = 0,
    names: Sequence[str] | None = None,
    until: Callable[[int, coordinator.Averages], bool] = lambda _, __: False,
) -> Trained:
    """Run up to `rounds` rounds; `until` sees the averages after every round k = 1, 2, … and may end the run."""
    known = names or [f"party-{m}" for m in range(len(tasks))]
    asked_for = coordinator.Settings(len(tasks), settings.accelerated, sampled, seed, settings.warm_rounds)
    program = FedbioProgram(asked_for, Length(rounds))
    members = [Membership(m, name, len(tasks), seed, sampled) for m, name in enumerate(known)]
    roles = [FedbioRole(task, settings, member) for task, member in zip(tasks, members, strict=True)]
    asked: list[str] = []
    outcome = Simulation(PROTOCOL, program, roles).run(
        until=lambda report: until(report.k, program.averages), watch=lambda current, _: asked.append(current.phase)
    )
    phases = asked.count("variables") + asked.count("momenta")
    return Trained(program.averages, [state.inner for state in outcome.states], phases)
