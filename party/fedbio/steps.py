"""FedBiO, FedBiOAcc and their -Local forms: what one party computes and what it sends.

J. Li, F. Huang and H. Huang, "Communication-efficient federated bilevel optimization with global and local lower level
problems": Algorithm 1 (FedBiOAcc), 2 (FedBiO), 3 (FedBiO-Local), 4 (FedBiOAcc-Local).

| paper | code | held by | leaves? |
|---|---|---|---|
| x, y, u | `Blocks.x`, `.y`, `.u` of `State.variables` | every party | inside a secure sum, unless private |
| ν, ω, q | `Blocks.x`, `.y`, `.u` of `State.momenta` | every party | inside a secure sum, unless private |
| η, γ, τ | `Settings.eta`, `.gamma`, `.tau` | every party | no |
| α_t = δ/(u₀+t)^{1/3} | `Settings.schedule` | every party | no |
| c_ν, c_ω, c_u | `Settings.c_nu`, `.c_omega`, `.c_u` | every party | no |
| I, r, Q | `Settings.local_steps`, `.radius`, `.neumann_terms` | every party | no |

differs from the paper: ν is the direction of x and ω that of y (the text above Eq. (7) swaps them); u is averaged with
x and y; B_{g,1} = B_{g,2} = B_y and B_{f,1} = B_{f,2}, which leaves every direction unbiased and costs one pass of
autograd; an upper variable that is separable stays at its party and is not averaged (docs/papers/fedbio.md).
"""

from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, cast

import numpy as np

from parley.numerics.metrics import party_addends
from parley.numerics.neumann import neumann_product, project_ball, residual
from parley.numerics.storm import Schedule, Vector, storm
from parley.numerics.streams import batch
from parley.party.fedbio.objectives import USUAL_ROWS, BilevelObjective, Rows
from parley.protocols.fedbio.messages import AveragingRound

BlockName = Literal["x", "y", "u"]

WARM_CHECKED = 1 / 6
"""Part of the warm rounds that are on checked rows alone."""
WARM_MOMENTUM = 0.9
"""Of y in warm rounds. Its velocity lies, and is averaged, in the place of u, which has no meaning yet."""
LARGEST_START = 6.0
"""Bilevel rounds start from weights between sigmoid(−6) and sigmoid(6): beyond, no gradient would bring them back."""


class InvalidSettings(ValueError):
    """The settings describe no algorithm of the family."""


class RoundMismatch(ValueError):
    """An instruction is for another round or phase than the one this party is in."""


class MeanMismatch(ValueError):
    """The averaged vector of an instruction is missing or does not have this party's layout."""


@dataclass(frozen=True, slots=True)
class Settings:
    """One party's side of a run; the same at every party of the run."""

    eta: float
    """η: step of the upper variable."""
    gamma: float
    """γ: step of the lower variable."""
    tau: float
    """τ: step of u; with a local lower problem, the scale of the Neumann series."""
    local_steps: int
    """I ≥ 1: steps between two averages."""
    accelerated: bool = False
    """STORM momenta, at the price of a second phase per round."""
    lower: Literal["global", "local"] = "global"
    """One lower problem for all (Eq. 1), or one for each party (Eq. 10, the -Local algorithms)."""
    upper: Literal["shared", "private"] = "shared"
    """`private`: each party owns its part of x (sample weights), steps it by η undivided, and never sends it."""
    average_u: bool = True
    """False only to show what goes wrong: the run then tends to the naive, biased point."""
    schedule: Schedule = field(default_factory=lambda: Schedule(1.0))
    """α_t, which multiplies η, γ and τ; and, squared, the momentum constants."""
    c_nu: float = 1.0
    """c_ν: momentum constant of the upper direction; c·α_t² must stay in [0, 1]."""
    c_omega: float = 1.0
    """c_ω: of the lower direction."""
    c_u: float = 1.0
    """c_u: of u's direction."""
    radius: float = np.inf
    """r of P_r: must exceed the norm of the *local* solutions, towards which u drifts between averages."""
    neumann_terms: int = 50
    """Q: Hessian products per hyper-gradient where the lower problem is local."""
    warm_rounds: int = 0
    """Rounds that fit y to checked rows and to labels of which a share is right, before weights move (cleaning)."""
    bounded: bool = False
    """No step of y or u passes what the rows allow; always so where there are warm rounds."""
    averages: bool = False
    """Whether figures of the party's own rows are summed with its measures."""
    lower_batch: int = 64
    """Training rows per step."""
    upper_batch: int = 64
    """Validation rows per step."""

    def __post_init__(self) -> None:
        for name in ("eta", "gamma", "tau", "radius"):
            if not getattr(self, name) > 0:
                raise InvalidSettings(f"{name} = {getattr(self, name)} must be positive")
        for name in ("local_steps", "lower_batch", "upper_batch"):
            if getattr(self, name) < 1:
                raise InvalidSettings(f"{name} = {getattr(self, name)} must be at least 1")
        if not self.shared:
            raise InvalidSettings("nothing would be averaged: a private upper variable needs a global lower problem")

    @property
    def shared(self) -> tuple[BlockName, ...]:
        """The blocks that are averaged, in the order in which they lie in a flat vector."""
        names: list[BlockName] = []
        if self.upper == "shared":
            names.append("x")
        if self.lower == "global":
            names.append("y")
            if self.average_u:
                names.append("u")
        return tuple(names)


@dataclass(frozen=True, slots=True)
class Blocks:
    """The three variables (x, y, u), or their directions (ν, ω, q) in the same places; u is empty in -Local."""

    x: Vector
    y: Vector
    u: Vector

    def pack(self, names: tuple[BlockName, ...]) -> Vector:
        """Lay the named blocks end to end."""
        return np.concatenate([getattr(self, name) for name in names])

    def size(self, names: tuple[BlockName, ...]) -> int:
        """Length of `pack(names)`."""
        return sum(getattr(self, name).size for name in names)

    def unpack(self, names: tuple[BlockName, ...], flat: Vector) -> "Blocks":
        """Replace the named blocks by the parts of `flat`; the others stay."""
        ends = np.cumsum([getattr(self, name).size for name in names])
        return replace(self, **dict(zip(names, np.split(flat, ends[:-1]), strict=True)))


@dataclass(frozen=True, slots=True)
class State:
    """All that a party keeps between two instructions."""

    variables: Blocks
    """x, y, u."""
    momenta: Blocks | None = None
    """ν, ω, q; None before the first round and in FedBiO."""
    previous: Blocks | None = None
    """The variables before the last local step, while the averaged ones are awaited (FedBiOAcc)."""
    round_index: int = -1
    """The last round that this party took part in."""
    projections: int = 0
    """How many local steps P_r has cut short: a number that keeps growing means that `radius` is too small."""


@dataclass(frozen=True, slots=True)
class Randomness:
    """Where a party's batches come from: they are named by (seed, party, k, t), never listed."""

    seed: int
    party: str

    def rows(self, purpose: str, k: int, t: int, count: int, size: int) -> Rows:
        """`size` distinct rows of `count`."""
        return batch(self.seed, f"fedbio/{self.party}/{purpose}", k, t, count, size)


class Bounded(BilevelObjective, Protocol):
    """An objective that knows how long a step may be."""

    @property
    def largest_step(self) -> float:
        """What its rows allow."""


class Weighable(Bounded, Protocol):
    """An objective whose weights can start from a model."""

    def largest_warm_step(self, trust: float | None) -> float:
        """What its rows allow with momentum."""

    def trust(self, y: Vector) -> float:
        """Share of labels that are right, as model y has it."""

    def warm_gradient(self, y: Vector, trust: float | None, rows: Rows, checked: Rows) -> Vector:
        """Of the loss that warm rounds descend on."""

    def warm_weights(self, y: Vector) -> Vector:
        """What model y says of each label, as logits."""


def _weighable(objective: BilevelObjective) -> Weighable:
    if not hasattr(objective, "warm_weights"):
        raise InvalidSettings("warm rounds are for data cleaning: leave `warm_rounds` at 0")
    return cast(Weighable, objective)


@dataclass(frozen=True, slots=True)
class Party:
    """A party's role: settings and its own objective; the state is an argument of every step."""

    settings: Settings
    objective: BilevelObjective

    def start(self, x: Vector, y: Vector) -> State:
        """The state before round 0; x (where shared) and y must be the same at all parties. u starts at 0."""
        wanted = (self.objective.upper_size, self.objective.lower_size)
        if (x.size, y.size) != wanted:
            raise MeanMismatch(
                f"x and y have sizes {x.size} and {y.size}; this objective has {wanted[0]} and {wanted[1]}"
            )
        return State(Blocks(x, y, np.zeros(y.size if self.settings.lower == "global" else 0)))

    def contribute(self, state: State, instruction: AveragingRound, randomness: Randomness) -> tuple[State, Vector]:
        """Carry out one instruction; the vector is this party's addend in the secure sum.

        Layout of `instruction.mean`, with n = `shared blocks` end to end: `momenta`, `evaluate` and `finish` carry
        the n variables; `variables` carries nothing in round 0, then the n variables (FedBiO), the n momenta
        (FedBiOAcc, to a party that was in the round before), or both, 2n (to one that may not have been).
        """
        if instruction.phase == "variables" and instruction.k < self.settings.warm_rounds:
            state = self._warm(state, instruction, randomness)
            return state, state.variables.pack(self.settings.shared)
        if instruction.phase == "variables":
            state = self._variables(self._adopt(state, instruction, randomness), instruction, randomness)
            return state, state.variables.pack(self.settings.shared)
        if instruction.phase == "momenta":
            state, momenta = self._momenta(state, instruction, randomness)
            return state, momenta.pack(self.settings.shared)
        if instruction.phase == "finish":
            variables = self._weighed(state, self._averaged(state, instruction.k, instruction.mean))
            return replace(state, variables=variables, previous=None), np.empty(0)
        if instruction.phase == "evaluate":
            variables = state.variables
            if instruction.mean is not None:
                variables = self._unpack(variables, instruction.mean)
            variables = self._weighed(state, variables)
            measures = self.objective.measure(variables.x, variables.y).vector()
            if not self.settings.averages:
                return state, measures
            return state, np.concatenate([measures, party_addends(*self.objective.judged(variables.y))])
        raise RoundMismatch(f"unknown phase {instruction.phase!r}")

    def directions(self, at: Blocks, k: int, t: int, randomness: Randomness) -> Blocks:
        """ν, ω, q at one point from the batches named (k, t): Eq. (6), or Eq. (11) for a local lower problem."""
        objective, settings = self.objective, self.settings
        upper_rows = randomness.rows("upper", k, t, objective.upper_rows, settings.upper_batch)
        lower_rows = randomness.rows("lower", k, t, objective.lower_rows, settings.lower_batch)
        upper = objective.upper_gradients(at.x, at.y, upper_rows)
        if settings.lower == "global":
            lower = objective.lower_terms(at.x, at.y, at.u, lower_rows)
            return Blocks(upper.x - lower.cross, lower.gradient, residual(lower.hessian, upper.y))

        def hessian_product(vector: Vector, j: int) -> Vector:
            rows = randomness.rows(f"hessian/{j}", k, t, objective.lower_rows, settings.lower_batch)
            return objective.hessian_product(at.x, at.y, vector, rows)

        inverse = neumann_product(hessian_product, upper.y, terms=settings.neumann_terms, tau=settings.tau)
        lower = objective.lower_terms(at.x, at.y, inverse, lower_rows)
        return Blocks(upper.x - lower.cross, lower.gradient, at.u)

    def _adopt(self, state: State, instruction: AveragingRound, randomness: Randomness) -> State:
        """Take over the averages that open round k."""
        k, mean = instruction.k, instruction.mean
        if k <= state.round_index or state.previous is not None:
            phase = "" if state.previous is None else ", whose momenta phase is still open"
            raise RoundMismatch(f"round {k} asked for; this party is in round {state.round_index}{phase}")
        present = k == state.round_index + 1 and k > 0
        size = state.variables.size(self.settings.shared)
        momenta = state.momenta
        if not self.settings.accelerated:
            return replace(state, variables=self._averaged(state, k, mean), round_index=k)
        if mean is None or (mean.size == size and 0 < k == self.settings.warm_rounds):  # nobody has momenta yet
            variables = self._averaged(state, k, mean)
            return replace(
                state, variables=variables, momenta=self.directions(variables, k, 0, randomness), round_index=k
            )
        if mean.size == 2 * size:
            state = replace(state, variables=self._averaged(state, k, mean[:size]))
            mean = mean[size:]
        elif not present:
            raise MeanMismatch(f"this party was not in round {k - 1} and needs its averaged variables too")
        if momenta is None or not present:
            # What a party keeps to itself has aged while it sat out: start those directions afresh.
            momenta = self.directions(state.variables, k, 0, randomness)
        return replace(state, momenta=self._unpack(momenta, mean), round_index=k)

    def _warm(self, state: State, instruction: AveragingRound, randomness: Randomness) -> State:
        """I local steps on y alone, with momentum: on checked rows, then on all, of which y says what share is right.

        Both y and its velocity are averaged (local SGD with momentum); steps shrink to 0 towards the last warm round.
        """
        objective, settings, k = _weighable(self.objective), self.settings, instruction.k
        if k <= state.round_index:
            raise RoundMismatch(f"round {k} asked for; this party is in round {state.round_index}")
        variables = self._averaged(state, k, instruction.mean)
        done = k / settings.warm_rounds
        trust = objective.trust(variables.y) if done >= WARM_CHECKED else None
        y, velocity = variables.y, variables.u
        step = min(settings.gamma, objective.largest_warm_step(trust)) * (1 - done)
        for i in range(settings.local_steps):
            rows = randomness.rows("lower", k, i, objective.lower_rows, settings.lower_batch)
            checked = randomness.rows("upper", k, i, objective.upper_rows, settings.upper_batch)
            gradient = objective.warm_gradient(y, trust, rows, checked)
            velocity = WARM_MOMENTUM * velocity + gradient
            y = y - step * (gradient + WARM_MOMENTUM * velocity)
        return replace(state, variables=replace(variables, y=y, u=velocity), round_index=k)

    def _weighed(self, state: State, variables: Blocks) -> Blocks:
        """With weights as the model has them, at a party that has been in warm rounds only."""
        if state.round_index >= self.settings.warm_rounds or not self.settings.warm_rounds:
            return variables
        return replace(variables, x=_weighable(self.objective).warm_weights(variables.y), u=np.zeros(variables.u.size))

    def _averaged(self, state: State, k: int, mean: Vector | None) -> Blocks:
        """The averaged variables; after the warm rounds, with weights from the model and u = 0 at first."""
        if mean is None and k > 0:
            raise MeanMismatch(f"round {k} carries no average of round {k - 1}")
        variables = state.variables if mean is None else self._unpack(state.variables, mean)
        if state.round_index < self.settings.warm_rounds <= k and self.settings.warm_rounds:
            weighed = self._weighed(state, variables)
            return replace(weighed, x=np.clip(weighed.x, -LARGEST_START, LARGEST_START))
        return variables

    def _variables(self, state: State, instruction: AveragingRound, randomness: Randomness) -> State:
        """I local steps, with I − 1 momentum updates between them in FedBiOAcc (Algorithm 1, lines 4 to 9)."""
        k = instruction.k
        for i in range(self.settings.local_steps):
            t = k * self.settings.local_steps + i
            before = state.variables
            directions = state.momenta
            if not self.settings.accelerated:
                directions = self.directions(before, k, i, randomness)
            elif i > 0 and state.momenta is not None and state.previous is not None:
                directions = self._storm(before, state.previous, state.momenta, t - 1, k, i, randomness)
            if directions is None:
                raise RoundMismatch(f"round {k} opened without momenta")
            variables, projected = self._step(before, directions, t)
            state = replace(state, variables=variables, projections=state.projections + projected)
            if self.settings.accelerated:
                state = replace(state, momenta=directions, previous=before)
        return state

    def _momenta(self, state: State, instruction: AveragingRound, randomness: Randomness) -> tuple[State, Blocks]:
        """STORM between the last local point and the averaged one: averaging comes first (line 6 before line 10)."""
        k, mean = instruction.k, instruction.mean
        if state.previous is None or state.momenta is None or k != state.round_index:
            raise RoundMismatch(f"momenta of round {k} asked for; round {state.round_index} does not await them")
        if mean is None:
            raise MeanMismatch(f"the momenta of round {k} need its averaged variables")
        variables = self._unpack(state.variables, mean)
        last = (k + 1) * self.settings.local_steps - 1
        momenta = self._storm(variables, state.previous, state.momenta, last, k, self.settings.local_steps, randomness)
        return replace(state, variables=variables, momenta=momenta, previous=None), momenta

    def _step(self, at: Blocks, direction: Blocks, t: int) -> tuple[Blocks, int]:
        """Eq. (8); with α = 1 it is Eq. (6). The count says whether P_r cut the step short."""
        settings = self.settings
        alpha = settings.schedule.step(t)
        # differs from the paper: what warm rounds have found is not lost again by a step that the rows do not allow
        bounded = settings.bounded or settings.warm_rounds
        most = cast(Bounded, self.objective).largest_step if bounded else np.inf
        gamma, tau = min(settings.gamma * alpha, most), min(settings.tau * alpha, most)
        u = at.u - tau * direction.u if at.u.size else at.u
        inside = project_ball(u, settings.radius)
        eta = settings.eta * alpha
        if (
            settings.warm_rounds
        ):  # differs from the paper: of fewer rows each is drawn more often, and moves as far in all
            eta *= min(1.0, self.objective.lower_rows / USUAL_ROWS)
        moved = Blocks(at.x - eta * direction.x, at.y - gamma * direction.y, inside)
        return moved, int(inside is not u)

    def _storm(
        self, at: Blocks, previous: Blocks, momenta: Blocks, t: int, k: int, draw: int, randomness: Randomness
    ) -> Blocks:
        """Eq. (7) for the three problems; both evaluations use the batches named (k, draw)."""
        fresh = self.directions(at, k, draw, randomness)
        stale = self.directions(previous, k, draw, randomness)
        squared, settings = self.settings.schedule.step(t) ** 2, self.settings
        return Blocks(
            storm(fresh.x, momenta.x, stale.x, settings.c_nu * squared),
            storm(fresh.y, momenta.y, stale.y, settings.c_omega * squared),
            storm(fresh.u, momenta.u, stale.u, settings.c_u * squared) if at.u.size else at.u,
        )

    def _unpack(self, blocks: Blocks, mean: Vector) -> Blocks:
        size = blocks.size(self.settings.shared)
        if mean.size != size:
            raise MeanMismatch(
                f"an average of {mean.size} numbers; the shared blocks {self.settings.shared} have {size}"
            )
        return blocks.unpack(self.settings.shared, mean)
