"""SGP and HGP in one process, on costs that an experiment makes: the product's roles, and a clock of its own."""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parley.coordinator.clock import Clock
from parley.coordinator.programs import Observer
from parley.numerics.bilevel_costs import BilevelCost
from parley.numerics.networks import NetworkPlan, check_strongly_connected
from parley.numerics.optimisers import ConstantStep, Moments
from parley.party.hgp import steps as hgp
from parley.party.hgp.push_sum import PushSumPlane
from parley.party.hgp.role import HgpRole, State
from parley.party.hgp.schedule import Schedule
from parley.protocols.decentralised.messages import Phase, StepRange
from parley.protocols.hgp.codec import PROTOCOL
from parley.simulation import Simulation, memory_peers

Vector = NDArray[np.floating]


@dataclass(frozen=True)
class Mixing:
    """A network and how its members share."""

    plan: NetworkPlan
    doubly_stochastic: bool = False
    """Metropolis weights (undirected networks only) instead of equal portions."""
    window: int = 50
    """B: any window of this many steps must be strongly connected; checked at the start of a run."""


@dataclass(frozen=True)
class Given:
    """A task (`parley.party.hgp.tasks.Task`) whose cost and start are given."""

    cost: BilevelCost
    x: Vector
    hyper: Vector
    optimiser: ConstantStep | None = None
    """Of the steps on λ_i, which stays as it is where only v_i is wanted."""

    def next_hyper(self, hyper: Vector, v: Vector, moments: Moments[Vector]) -> tuple[Vector, Moments[Vector]]:
        """λ_i after an outer iteration."""
        return (hyper, moments) if self.optimiser is None else hgp.outer_step(hyper, v, moments, self.optimiser)

    def measures(self, x: Vector, hyper: Vector, v: Vector | None) -> NDArray[np.float64]:  # noqa: ARG002
        """Nothing: the experiment measures for itself."""
        return np.empty(0)

    def findings(self, v: Vector | None) -> Mapping[str, bytes]:  # noqa: ARG002
        """Nothing: nobody owns these rows."""
        return {}


@dataclass(frozen=True)
class OneIteration:
    """The schedule (`parley.party.hgp.schedule.Schedule`) of an inner problem, of a hyper-gradient, or of both."""

    inner: hgp.Training | None = None
    hyper: hgp.Hgp | None = None
    first: int = 0
    """Where both begin in the network's schedule."""

    def training(self, k: int) -> hgp.Training:  # noqa: ARG002 (there is one iteration)
        """The inner problem's settings."""
        assert self.inner is not None  # noqa: S101 (only what is there is asked for)
        return self.inner

    def hyper_gradient(self, k: int) -> hgp.Hgp:  # noqa: ARG002
        """The hyper-gradient's settings."""
        assert self.hyper is not None  # noqa: S101
        return self.hyper

    def first_step(self, k: int, phase: Phase) -> int:  # noqa: ARG002
        """Where a phase begins."""
        return self.first


class Stretches(Clock):
    """A clock that asks for given stretches and measures nothing."""

    outputs = 0

    def __init__(self, parties: int, stretches: Sequence[StepRange]) -> None:
        super().__init__(parties)
        self._stretches = stretches

    def rounds(self, done: int, observe: Observer) -> Generator[StepRange, Any, None]:  # noqa: ARG002
        """The stretches."""
        yield from self._stretches
        yield self.finish


def walk(
    tasks: Sequence[Given],
    mixing: Mixing,
    schedule: Schedule,
    stretches: Sequence[StepRange],
    watch: Callable[[StepRange, Sequence[State]], None] | None = None,
) -> tuple[list[State], dict[str, float]]:
    """Every party's state at the end, and what the parties sent each other; `watch` sees them after each stretch."""
    check_strongly_connected(mixing.plan, window=mixing.window, steps=mixing.window)
    most_waiting = 2 * len(tasks) * (1 + max(each.last - each.first for each in stretches))
    roles = []
    for m, (task, peers) in enumerate(zip(tasks, memory_peers(len(tasks)), strict=True)):
        shares = mixing.doubly_stochastic
        plane = PushSumPlane(m, mixing.plan, peers, doubly_stochastic=shares, most_waiting=most_waiting)
        roles.append(HgpRole(m, task, schedule, plane))
    clock = Stretches(len(tasks), stretches)
    return Simulation(PROTOCOL, clock, roles).run(watch=watch).states, clock.traffic()


def train(
    costs: Sequence[BilevelCost],
    mixing: Mixing,
    settings: hgp.Training,
    start: Sequence[Vector],
    hypers: Sequence[Vector],
    *,
    first_step: int = 0,
) -> list[Vector]:
    """Solve the inner problem by SGP and return each party's model."""
    tasks = [Given(*parts) for parts in zip(costs, start, hypers, strict=True)]
    states, _ = walk(tasks, mixing, OneIteration(inner=settings, first=first_step), [whole("train", settings)])
    return [state.x for state in states]


def hyper_gradients(
    costs: Sequence[BilevelCost],
    mixing: Mixing,
    settings: hgp.Hgp,
    points: Sequence[Vector],
    hypers: Sequence[Vector],
    *,
    first_step: int = 0,
    marks: Sequence[int] = (),
    watch: Callable[[int, list[Vector]], None] = lambda _, __: None,
) -> list[Vector]:
    """Return each party's v_i ≈ d/dλ_i Σ_k f_k; `watch(m, v)` sees the parties' own v after each round of `marks`.

    With one push step for each round the last but one is not seen: its end and that of the last fall into one stretch.
    """
    tasks = [Given(*parts) for parts in zip(costs, points, hypers, strict=True)]
    # A round ends with the first step of the next one, which takes in what was sent last.
    ends = {m * settings.push_steps + 1: m for m in marks if m * settings.push_steps + 1 < settings.steps}
    cuts = [0, *sorted(ends), settings.steps]
    stretches = [StepRange("hyper_gradient", 0, *pair) for pair in pairwise(cuts)]

    def seen(stretch: StepRange, states: Sequence[State]) -> None:
        if stretch.last in ends:
            watch(ends[stretch.last], [state.outer.v for state in states if state.outer is not None])

    schedule = OneIteration(hyper=settings, first=first_step)
    found = [state.v for state in walk(tasks, mixing, schedule, stretches, seen)[0] if state.v is not None]
    if settings.rounds in marks:
        watch(settings.rounds, found)
    return found


def whole(phase: Phase, settings: hgp.Training | hgp.Hgp, k: int = 0) -> StepRange:
    """A phase in one stretch."""
    return StepRange(phase, k, 0, settings.steps)
