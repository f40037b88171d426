"""BAMBI at a party (the paper's Algorithm 1, corrected).

Symbol map:

    paper           code                shape                   held by   leaves?
    a_m             features            (rows, columns)         party     never
    x_m             state.x             (p_m,)                  party     never
    y_m             state.y             (embedding, classes)    party     never
    ŷ_m^j           trajectories        (1+Q, embedding, C)     party     never
    u_{k,j}         directions          (Q, p_m)                party     drawn from the public seed
    s_m = T(x, a)   embedding           (…, batch, embedding)   party     never
    h_m = s_m y_m   contribution        (1+Q, batch, C − 1)     party     as an addend of a secure sum
    θ, ϑ            Gradient            (…, batch, C − 1)       all       released by the coordinator
    v               solve.solution      (embedding, C)          party     never

`apply` takes the outcome of the round before, `contribute` makes the addend of the next one; both are pure. What a
party holds between the two depends on its phase (`phases`).

torch holds what a network is differentiated by: x and what follows from it. What is linear in y is numpy's: on a batch
of a few kilobytes an operation of torch takes longer than the arithmetic.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

import parley.party.bambi.shard_work as shards
from parley.numerics.arrays import Array, Vector
from parley.numerics.limbs import to_limbs
from parley.numerics.losses import clean_loss
from parley.numerics.optimisers import Moments, clipped, descend, move, schedule_of
from parley.numerics.streams import directions, stream
from parley.party.bambi.lower_system import LowerBatch, Solve
from parley.party.bambi.models import EmbeddingModel
from parley.party.bambi.own_block import OwnBlock
from parley.party.bambi.phases import (
    AdjointSystem,
    ConfirmationAsked,
    CurvatureAsked,
    Descended,
    DescentAsked,
    Differentiated,
    DirectionsAsked,
    Embedded,
    Linearised,
    NewtonAsked,
    NewtonSystem,
    Phase,
    Ready,
    Solving,
    UpperAsked,
)
from parley.party.bambi.row_privacy import NoisedBatches, NoisedPredictions, RoundName, model_digest
from parley.privacy.row_sums import in_parts
from parley.protocols.bambi.batches import envelope, lower_rows, upper_rows
from parley.protocols.bambi.columns import completed, reduced
from parley.protocols.bambi.messages import (
    Ask,
    Coefficients,
    CurvatureForward,
    CurvatureStep,
    DirectionalForward,
    Gradient,
    LowerForward,
    Outcome,
    RowsForward,
    UpperForward,
)
from parley.protocols.bambi.settings import BambiSpec
from parley.spec.rows import RowSets
from parley.tables.rows import LocalRows, ShardedRows

READY = Ready()


class OutcomeUnexpected(ValueError):
    """The coordinator sent an outcome that no contribution of this party waits for."""


class OutcomeMisshapen(ValueError):
    """An outcome has another shape than the contribution that it answers."""


@dataclass(frozen=True)
class Block:
    """What stays fixed for a session: this party's data, its model and the run's settings."""

    settings: BambiSpec
    model: EmbeddingModel
    features: Array | LocalRows
    """`ShardedRows` where an engine works on them."""
    rows: RowSets
    seed: int
    index: int
    """This party's place among the blocks."""
    upper_sizes: tuple[int, ...]
    """p_m of every party; public, so that joint directions can be drawn by each."""
    outputs: int
    """Columns of h: classes, or 1."""
    noised: NoisedBatches | NoisedPredictions | None = None
    """Where rows have a bound of their own in each sum."""

    @property
    def columns(self) -> int:
        """Columns of h that cross."""
        return self.settings.columns(self.outputs)

    @property
    def has_direct_term(self) -> bool:
        """Whether f depends on x_m directly (an embedding) and not only through y*."""
        return self.settings.problem != "hyper_parameters"

    @cached_property
    def envelope(self) -> bool:
        """Whether x steps along the direct term alone."""
        return envelope(self.settings, self.rows)

    def linearises(self, k: int, t: int) -> bool:
        """Whether lower round (k, t) comes after the lower solve, only to fix θ for the implicit hyper-gradient."""
        settings = self.settings
        return (
            settings.hypergradient == "implicit"
            and settings.problem != "joint"
            and 1 <= k <= settings.upper.steps
            and t == settings.lower.steps
        )

    def embeds_next(self, k: int, t: int) -> bool:
        """Whether lower round (k, t) is followed by another one on rows of its own, at the same x."""
        return self.settings.lower.solver == "sgd" and t + 1 < self.lower_rounds(k)

    def lower_rounds(self, k: int) -> int:
        """Gradient steps of upper iteration k, and the round that fixes θ where there is one."""
        lower = self.settings.lower
        steps = lower.warmup_steps if k == 0 else lower.steps if k <= self.settings.upper.steps else lower.final_steps
        return steps + self.linearises(k, steps)

    @property
    def span(self) -> slice:
        """This party's part of the joint upper vector."""
        start = sum(self.upper_sizes[: self.index])
        return slice(start, start + self.upper_sizes[self.index])


class State(NamedTuple):
    """What a party has learnt, and where it stands in an upper iteration."""

    x: Tensor
    y: Array
    moments: Moments[Tensor]
    """Of x."""
    lower_moments: Moments[Array]
    """Of y, where it takes gradient steps with a memory."""
    k: int = 0
    """Upper iterations done."""
    phase: Phase = READY
    """Does not outlive an upper iteration: no checkpoint holds it."""
    looked_up_to: tuple[str, int] | None = None
    """Set and row before which the last evaluation ended: rows that follow are in no sum of it yet."""


def upper_size(settings: BambiSpec, model: EmbeddingModel) -> int:
    """p_m: weights of the embedding, or regularisation coefficients."""
    if settings.problem != "hyper_parameters":
        return model.size
    return 1 if settings.coefficients == "party" else model.out


def start(block: Block) -> State:
    """x and y before the first round, from named streams."""
    settings, dtype = block.settings, block.model.dtype
    if block.has_direct_term:
        x = block.model.initial(stream(block.seed, f"x/{block.index}"))
    else:
        coefficients = upper_size(settings, block.model)
        x = torch.full((coefficients,), float(np.log(settings.regularisation)), dtype=dtype)
    y = np.zeros((block.model.out, block.outputs), block.features.dtype)
    return State(x, y, Moments.zeros(x), Moments.zeros(y))


def apply(block: Block, state: State, outcome: Outcome) -> State:
    """Take the outcome of the round before."""
    match outcome, state.phase:
        case Gradient(theta=theta), DescentAsked() as phase if theta is not None:
            return _take_theta(block, state, phase, theta)
        case Gradient(theta=theta, step_length=part), NewtonAsked(batch=batch) if theta is not None:
            return state._replace(y=np.asarray(part * state.y), phase=_linearised(block, batch, theta))
        case Gradient(theta=theta, step_length=length), ConfirmationAsked(batch=batch, step=step) if theta is not None:
            return state._replace(y=state.y + length * step, phase=_linearised(block, batch, theta))
        case Gradient(vartheta=vartheta, step_length=scale), UpperAsked() as phase if vartheta is not None:
            return _upper_gradient(block, state, phase, vartheta, scale)
        case Coefficients(values=values), DirectionsAsked(k=k, directions=u, direct=direct):
            _check_shape((len(values),), (block.settings.zeroth_order.directions,))
            return _zeroth_order_step(block, state, k, u, direct, np.asarray(values))
        case CurvatureStep() as step, CurvatureAsked() as phase:
            return _conjugate_step(block, state, phase, step)
    raise _out_of_step(outcome, state)


def _out_of_step(message: Outcome | Ask, state: State) -> OutcomeUnexpected:
    return OutcomeUnexpected(
        f"{type(message).__name__} does not fit a party in phase {type(state.phase).__name__}: "
        "coordinator and party are out of step"
    )


def _check_shape(came: tuple[int, ...], due: tuple[int, ...]) -> None:
    if came != due:
        raise OutcomeMisshapen(f"an outcome of shape {came} came where {due} is due")


def contribute(block: Block, state: State, ask: Ask) -> tuple[State, Vector]:
    """Make this party's addend of the round's sum."""
    match ask:
        case LowerForward():
            newton = block.settings.lower.solver == "newton"
            return _newton_forward(block, state, ask) if newton else _descent_forward(block, state, ask)
        case UpperForward():
            return _upper_forward(block, state, ask)
        case DirectionalForward():
            return _directional_forward(block, state, ask)
        case CurvatureForward():
            return _curvature_forward(block, state, ask)
        case RowsForward(rows=name, first=first, count=count):
            span = slice(first, first + count)
            rows = span if name == "all" else getattr(block.rows, name)[span]
            h = reduced(_logits(block, state, rows), block.columns)
            if block.noised is not None:
                model = model_digest(state.x.numpy(), state.y)
                return state._replace(phase=READY), block.noised.looked_at(h, name, first, model)
            return state._replace(phase=READY), _flat(h)
    return state, np.empty(0)


def sums_of_row(state: State) -> int:
    """How many sums of each row the last contribution holds: one for every trajectory."""
    return len(state.phase.trajectories) if isinstance(state.phase, DescentAsked) else 1


def _logits(block: Block, state: State, rows: Array | slice) -> Array:
    if isinstance(block.features, ShardedRows):
        return shards.predict(block.features, block.model, state.x, state.y, rows)
    if isinstance(block.features, LocalRows) and block.features.is_sparse:  # all of them filled at once may not fit
        chosen = np.arange(len(block.features))[rows]
        return block.features.map(lambda a: predict(block.model, state.x, state.y, a, block.has_direct_term), chosen)
    return predict(block.model, state.x, state.y, block.features[rows], block.has_direct_term)


def predict(model: EmbeddingModel, x: Tensor, y: Array, features: Array, embeds: bool) -> Array:
    """h_m of some rows; `embeds` says whether x are the model's weights."""
    with torch.no_grad():
        s = model.apply(x, torch.from_numpy(features)).numpy() if embeds else features
    return np.asarray(s @ y)


def _descent_forward(block: Block, state: State, ask: LowerForward) -> tuple[State, Vector]:
    """h_m of a lower batch along every trajectory."""
    match state.phase:
        case _ if ask.t == 0:
            trajectories, points, directions = _begin_iteration(block, state, ask.k)
            moments = state.lower_moments.repeated(len(trajectories))
            current = _embedded(block, points, ask)
        case Descended(trajectories, moments, points, directions, newest):
            current = newest if newest.ask == ask else _embedded(block, points, ask)
        case _:
            raise _out_of_step(ask, state)
    phase = DescentAsked(trajectories, moments, points, directions, current, newest=current)
    return state._replace(phase=phase), _addend(block, current.s @ trajectories, ("lower", ask.k, ask.t))


def _addend(block: Block, h: Array, name: RoundName) -> Vector:
    """h_m of the batch of a round, as it goes into the sum."""
    h = reduced(h, block.columns)
    if not isinstance(block.noised, NoisedBatches):
        return _flat(h)
    return block.noised.addend(h, name)


def next_lower_batch(block: Block, state: State) -> LowerForward | None:
    """The next lower round, where its embedding can be made before its instruction comes."""
    match state.phase:
        case DescentAsked(current=current, newest=newest) if newest is current:
            k, t = current.ask.k, current.ask.t
            return LowerForward(k, t + 1) if block.embeds_next(k, t) else None
    return None


def prefetch(block: Block, state: State) -> State:
    """Embed the next lower batch while this one's sum is on its way: no outcome of a lower round changes x."""
    ask = next_lower_batch(block, state)
    if ask is None or not isinstance(state.phase, DescentAsked):
        return state
    return state._replace(phase=state.phase._replace(newest=_embedded(block, state.phase.points, ask)))


def _begin_iteration(block: Block, state: State, k: int) -> tuple[Array, Tensor, Tensor]:
    """Line 3 of Algorithm 1: every trajectory starts at y^{k−1,N}, along directions of its own."""
    zeroth = block.settings.zeroth_order
    copies = block.settings.trajectories if 1 <= k <= block.settings.upper.steps else 1
    points, u = state.x, state.x.new_empty((0, len(state.x)))
    if copies > 1:
        size = sum(block.upper_sizes)  # none where only the label holder has upper variables
        drawn = directions(block.seed, k, zeroth.directions, size, zeroth.kind) if size else np.empty((copies - 1, 0))
        u = torch.from_numpy(np.ascontiguousarray(drawn[:, block.span])).to(state.x.dtype)
        points = torch.cat([state.x.unsqueeze(0), state.x + zeroth.smoothing * u])
    return np.repeat(state.y[None], copies, axis=0), points, u


def _embedded(block: Block, points: Tensor, ask: LowerForward) -> Embedded:
    return Embedded(ask, _lower_embedding(block, points, ask))


def _lower_embedding(block: Block, points: Tensor, ask: LowerForward) -> Array:
    """s_m of the batch of a lower round, at one point or at a stack of them."""
    rows = lower_rows(block.settings, block.rows, block.seed, ask.k, ask.t)
    if isinstance(block.features, ShardedRows):
        return shards.embed(block.features, block.model, points if points.ndim > 1 else points[None], rows)
    if isinstance(block.features, LocalRows):
        a = block.features.batch("lower", rows, lambda: _following_lower(block, ask))
    else:
        a = block.features.take(rows, axis=0)
    if block.model.kind == "identity":  # the features themselves, whatever x is
        return a[None] if points.ndim == 1 else np.broadcast_to(a, (len(points), *a.shape))
    with torch.no_grad():
        if points.ndim == 1:
            return np.asarray(block.model.apply(points, torch.from_numpy(a)).numpy()[None])
        return np.asarray(block.model.apply_stack(points, torch.from_numpy(a)).numpy())


def _following_lower(block: Block, ask: LowerForward) -> Iterator[Array]:
    """Lower batches after this one, as far as they are known to be asked for."""
    draw = partial(lower_rows, block.settings, block.rows, block.seed)
    once = block.settings.lower.solver == "newton"
    if not once:
        yield from (draw(ask.k, t) for t in range(ask.t + 1, block.lower_rounds(ask.k)))
    for k in range(ask.k + 1, block.settings.upper.steps + 1):
        yield from (draw(k, t) for t in range(1 if once else block.lower_rounds(k)))


def regulariser(block: Block, x: Tensor) -> Array | float:
    """Coefficient of ‖y‖²: γ, or exp(x) for each party or feature; broadcasts against y (and stacks of it)."""
    if isinstance(block.model, OwnBlock):
        return block.model.penalties(x, block.settings.regularisation)
    return block.settings.regularisation if block.has_direct_term else np.exp(x.numpy())[..., None]


def _take_theta(block: Block, state: State, phase: DescentAsked, theta: Array) -> State:
    """Step down every trajectory, or keep θ where the round was made only to fix it."""
    ask, s = phase.current
    received = _received(theta, block, (*s.shape[:2], block.outputs))
    if block.linearises(ask.k, ask.t):
        return state._replace(phase=Linearised(_lower_batch(block, state.x, s[0]), received[0]))
    y, moments = _lower_step(block, phase, received)
    own = moments.of(0)
    phase_after = Descended(y, moments, phase.points, phase.directions, phase.newest)
    return state._replace(y=y[0], lower_moments=own, phase=phase_after)


def _lower_step(block: Block, phase: DescentAsked, theta: Array) -> tuple[Array, Moments[Array]]:
    """Line 14: one gradient step on every trajectory, closed loop.

    Differs from the paper: ŷ^j is updated at ŷ^j (the printed line steps from y, which loses all but one step).
    """
    (ask, s), y = phase.current, phase.trajectories
    gradient = _data_gradient(block, s, theta, ask)
    gradient += 2 * regulariser(block, phase.points) * y
    optimiser = block.settings.lower.optimiser
    if optimiser.clip is not None:
        norm = np.linalg.norm(gradient, axis=(1, 2), keepdims=True)
        gradient *= np.minimum(optimiser.clip / np.maximum(norm, 1e-30), 1.0)
    size = schedule_of(optimiser, ask.k, block.settings.upper.steps)
    if optimiser.kind == "sgd" and not optimiser.momentum:  # nothing to remember
        return y - size * gradient, phase.moments
    return move(y, gradient, phase.moments, optimiser, size)


def _data_gradient(block: Block, s: Array, theta: Array, ask: LowerForward) -> Array:
    """sᵀθ of every trajectory; where rows have a bound each is shortened by itself, and the sum is noised."""
    if not isinstance(block.noised, NoisedBatches):
        return np.asarray(s.swapaxes(1, 2) @ theta)
    copies, batch, width = s.shape
    size = copies * width * block.outputs

    def parts() -> Iterator[Vector]:
        for some in in_parts(batch, size):
            each = np.einsum("jie,jic->ijec", s[:, some], theta[:, some], dtype=np.float64)
            yield each.reshape(len(each), size)

    noised = block.noised.step(parts(), batch, ("lower", ask.k, ask.t))
    return np.asarray(noised.reshape(copies, width, block.outputs).astype(s.dtype))


def _upper_forward(block: Block, state: State, ask: UpperForward) -> tuple[State, Vector]:
    implicit = block.settings.hypergradient == "implicit"
    lower: Descended | Linearised | Ready
    match state.phase:
        case Ready() as lower if block.settings.problem == "joint":
            pass
        case Linearised() as lower if implicit:
            pass
        case Descended(directions=u) as lower if not implicit and len(u):
            pass
        case _:
            raise _out_of_step(ask, state)
    rows = upper_rows(block.settings, block.rows, block.seed, ask.k)
    weights = state.x.detach().clone().requires_grad_(block.has_direct_term)
    s = _upper_embedding(block, weights, rows, ask.k)
    asked = UpperAsked(ask.k, lower, s, weights, rows)
    return state._replace(phase=asked), _addend(block, s.detach().numpy() @ state.y, ("upper", ask.k, 0))


def _upper_embedding(block: Block, weights: Tensor, rows: Array, k: int) -> Tensor:
    """s_m of the upper batch, with its graph to x where its features are here."""
    if isinstance(block.features, ShardedRows):
        return torch.from_numpy(shards.embed(block.features, block.model, weights[None], rows)[0])
    if isinstance(block.features, LocalRows):
        later = range(k + 1, block.settings.upper.steps + 1)
        draw = partial(upper_rows, block.settings, block.rows, block.seed)
        a = torch.from_numpy(block.features.batch("upper", rows, lambda: map(draw, later)))
    else:
        a = torch.from_numpy(block.features[rows])
    return block.model.apply(weights, a) if block.has_direct_term else a


def _upper_gradient(block: Block, state: State, phase: UpperAsked, vartheta: Array, scale: float) -> State:
    """∇_x f directly and ∇_{y_m} f, from ϑ (lines 21–23)."""
    vartheta = _received(vartheta, block, (len(phase.s), block.outputs))
    direct, gradient = _upper_gradients(block, state, phase, vartheta)
    if isinstance(block.model, OwnBlock):
        direct = direct + block.model.upper_gradient(state.x)
    if isinstance(phase.lower, Ready):
        return _joint_step(block, state, phase.k, direct, gradient)
    if block.envelope:
        if not 0 < scale <= 1:
            raise OutcomeMisshapen(f"x was told to take {scale} of its step; it takes all of it at most")
        return _upper_step(block, state, phase.k, direct, scale)
    if block.settings.hypergradient == "zeroth_order_local" and isinstance(phase.lower, Descended):
        shares = _directional_shares(block, phase.lower.trajectories, gradient)
        return _zeroth_order_step(block, state, phase.k, phase.lower.directions, direct, shares)
    return state._replace(phase=Differentiated(phase.lower, direct, gradient))


def _upper_gradients(block: Block, state: State, phase: UpperAsked, vartheta: Array) -> tuple[Tensor, Array]:
    """∇_x f directly and ∇_{y_m} f; where rows have a bound each is shortened by itself, and the sums are noised."""
    s, factors = phase.s.detach().numpy(), vartheta @ state.y.T
    if not isinstance(block.noised, NoisedBatches):
        return _pulled_back(block, phase.s, phase.weights, phase.rows, factors), s.T @ vartheta
    a = torch.from_numpy(block.features[phase.rows])
    upper = len(state.x) if phase.s.requires_grad else 0

    def parts() -> Iterator[Vector]:
        for some in in_parts(len(s), upper + s.shape[1] * block.outputs):
            each = np.einsum("ie,ic->iec", s[some], vartheta[some], dtype=np.float64).reshape(len(s[some]), -1)
            if upper:
                own = block.model.row_gradients(state.x, a[some], torch.from_numpy(factors[some]))
                each = np.hstack([own.double().numpy(), each])
            yield each

    noised = block.noised.step(parts(), len(s), ("upper", phase.k, 0))
    direct = torch.zeros_like(state.x)
    if upper:
        direct = torch.from_numpy(noised[:upper]).to(state.x.dtype)
    return direct, noised[upper:].reshape(s.shape[1], block.outputs).astype(s.dtype)


def _pulled_back(block: Block, s: Tensor | None, x: Tensor, rows: Array, factors: Array) -> Tensor:
    """∇_x ⟨s, factors⟩, at s = T(x) of these rows (None where nobody has made it yet)."""
    if isinstance(block.features, ShardedRows):
        return shards.differentiate(block.features, block.model, x, rows, factors)
    if s is None:
        s = block.model.apply(x, torch.from_numpy(block.features[rows]))
    if not s.requires_grad:  # the features are the embedding
        return torch.zeros_like(x)
    (gradient,) = torch.autograd.grad(s, x, torch.from_numpy(factors))
    return gradient


def _directional_forward(block: Block, state: State, ask: DirectionalForward) -> tuple[State, Vector]:
    match state.phase:
        case Differentiated(lower=Descended() as lower, direct=direct, gradient=gradient):
            shares = _directional_shares(block, lower.trajectories, gradient)
            return state._replace(phase=DirectionsAsked(ask.k, lower.directions, direct)), shares
    raise _out_of_step(ask, state)


def _directional_shares(block: Block, y: Array, gradient: Array) -> Vector:
    """⟨ŷ_m^j − y_m, ∇_{y_m} f⟩/μ for each j."""
    shares: Vector = ((y[1:] - y[0]) * gradient).sum(axis=(1, 2)) / block.settings.zeroth_order.smoothing
    return shares


def _zeroth_order_step(block: Block, state: State, k: int, u: Tensor, direct: Tensor, coefficients: Vector) -> State:
    """Eq. 5 with s_j summed over all parties.

    Differs from the paper: Eq. 5 uses the party's own ⟨ŷ_m^j − y_m, ∇_{y_m} f⟩ alone (`zeroth_order_local`), which
    drops ∂y_{m'}/∂x_m and is biased.
    """
    weights = torch.from_numpy(coefficients / len(coefficients)).to(u.dtype)
    jacobian_term = weights @ u
    clip = block.settings.zeroth_order.jacobian_clip
    if clip is not None and block.has_direct_term:
        # Where Q ≪ p the noise of this term is √(p/Q) times its size: unbounded, it diverges.
        longest = clip * direct.norm()
        jacobian_term = jacobian_term * torch.clamp(longest / jacobian_term.norm().clamp_min(1e-30), max=1.0)
    return _upper_step(block, state, k, direct + jacobian_term)


def _upper_step(block: Block, state: State, k: int, hypergradient: Tensor, scale: float = 1.0) -> State:
    upper = block.settings.upper
    size = scale * schedule_of(upper.optimiser, k, upper.steps)
    gradient = clipped(hypergradient, upper.optimiser.clip)
    x, moments = move(state.x, gradient, state.moments, upper.optimiser, size)
    return state._replace(x=x, moments=moments, k=k, phase=READY)


def _joint_step(block: Block, state: State, k: int, direct: Tensor, gradient: Array) -> State:
    """One level: x and y step down the same loss at once, each with its own optimiser."""
    gradient = gradient + 2 * block.settings.regularisation * state.y
    optimiser, steps = block.settings.lower.optimiser, block.settings.upper.steps
    y, moments = descend(state.y, gradient, state.lower_moments, optimiser, k, steps)
    return _upper_step(block, state._replace(y=y, lower_moments=moments), k, direct)


def _newton_forward(block: Block, state: State, ask: LowerForward) -> tuple[State, Vector]:
    """h_m at y, or at the end of the last Newton step; with the penalty there and that of the step alone."""
    match state.phase:
        case _ if ask.t == 0:
            lower = _lower_batch(block, state.x, _lower_embedding(block, state.x, ask)[0])
            candidate, step = state.y, np.zeros_like(state.y)
            phase: Phase = NewtonAsked(lower)
        case Solving(system=NewtonSystem(batch=lower), solve=Solve(solution=step)):
            candidate = state.y + step
            phase = ConfirmationAsked(lower, step)
        case _:
            raise _out_of_step(ask, state)
    scalars = [np.sum(lower.penalty * candidate**2), np.sum(lower.penalty * step**2)]
    return state._replace(phase=phase), _flat(reduced(lower.s @ candidate, block.columns), *scalars)


def _lower_batch(block: Block, x: Tensor, s: Array) -> LowerBatch:
    settings = block.settings
    curvature = clean_loss(settings.loss, block.outputs).curvature_scale
    return LowerBatch(s, regulariser(block, x), curvature, settings.implicit.preconditioner)


def _linearised(block: Block, lower: LowerBatch, theta: Array) -> Linearised:
    return Linearised(lower, _received(theta, block, (1, len(lower.s), block.outputs))[0])


def _curvature_forward(block: Block, state: State, ask: CurvatureForward) -> tuple[State, Vector]:
    """S_m z, Σ 2γ z·z and r·z with z = M⁻¹r; the coordinator adds what is missing of z·Hz itself.

    r·z falls by many orders of magnitude before the system is solved: the scalars travel as two limbs each.
    """
    system: NewtonSystem | AdjointSystem
    newton = block.settings.lower.solver == "newton"
    match ask.system, state.phase:
        case "newton", Linearised(batch=lower, theta=theta) if newton:
            system, solve = NewtonSystem(lower), Solve.of(-lower.gradient(theta, state.y))
        case "adjoint", Differentiated(lower=Linearised(batch=lower, theta=theta), direct=direct, gradient=gradient):
            system, solve = AdjointSystem(lower, theta, direct), Solve.of(gradient)
        case "newton", Solving(system=NewtonSystem() as system, solve=solve):
            pass
        case "adjoint", Solving(system=AdjointSystem() as system, solve=solve):
            pass
        case _:
            raise _out_of_step(ask, state)
    lower = system.batch
    z = lower.precondition(solve.residual)
    high, low = to_limbs(np.array([2 * np.sum(lower.penalty * z**2), np.sum(solve.residual * z)]))
    return state._replace(phase=CurvatureAsked(ask.k, system, solve, z)), _flat(
        reduced(lower.s @ z, block.columns), *high, *low
    )


def _conjugate_step(block: Block, state: State, phase: CurvatureAsked, step: CurvatureStep) -> State:
    """One iteration of the system; the last of the adjoint one brings the product with its solution, and ends it."""
    lower = phase.system.batch
    shape = (len(lower.s), block.outputs)
    image = lower.gradient(_received(step.product, block, shape), phase.z)
    solve = phase.solve.moved(phase.z, image, step.alpha, step.beta)
    if step.solution_product is None:
        return state._replace(phase=Solving(phase.system, solve))
    if isinstance(phase.system, NewtonSystem):
        raise _out_of_step(step, state)
    c = _received(step.solution_product, block, shape)
    return _implicit_step(block, state, phase.k, phase.system, solve.solution, c, step.upper_scale)


def _implicit_step(
    block: Block, state: State, k: int, system: AdjointSystem, v: Array, c: Array, scale: float
) -> State:
    """∇_x f − (∂²g/∂x∂y) v: with the factors held fixed, a gradient of inner products with T_m(x_m)."""
    x = state.x.detach().clone().requires_grad_()
    if block.has_direct_term:
        rows = lower_rows(block.settings, block.rows, block.seed, k, block.settings.lower.steps)
        cross = _pulled_back(block, None, x, rows, system.theta @ v.T + c @ state.y.T)
        if isinstance(block.model, OwnBlock):
            penalty = block.model.penalty(x, block.settings.regularisation)
            if penalty.requires_grad:
                cross = (
                    cross + torch.autograd.grad(penalty, x, torch.from_numpy(2 * state.y * v).sum(1, keepdim=True))[0]
                )
        clip = block.settings.implicit.adjoint_clip
        if clip is not None and len(rows) < len(block.rows.lower):
            # On a batch with fewer rows than y has weights, v is large where the batch says nothing.
            cross = clipped(cross, clip * float(system.direct.norm()))
    else:
        (cross,) = torch.autograd.grad((2 * torch.exp(x)[:, None] * torch.from_numpy(state.y * v)).sum(), x)
    return _upper_step(block, state, k, system.direct - cross, scale)


def _received(array: Array, block: Block, shape: tuple[int, ...]) -> Array:
    """θ or a product of this shape, with the column that did not cross."""
    _check_shape(array.shape, (*shape[:-1], block.columns))
    return completed(array.astype(block.features.dtype, copy=False), block.outputs)


def _flat(array: Array, *scalars: np.floating) -> Vector:
    """One vector for one message: an array in row-major order, then scalars."""
    flat = array.reshape(-1)
    return np.append(flat, np.array(scalars, flat.dtype)) if scalars else flat
