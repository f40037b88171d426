"""BAMBI at a party (the paper's Algorithm 1, corrected).

Symbol map:

    paper           code                shape                   held by   leaves?
    a_m             features            (rows, columns)         party     never
    x_m             state.x             (p_m,)                  party     never
    y_m             state.y             (embedding, classes)    party     never
    ŷ_m^j           state.trajectories  (1+Q, embedding, C)     party     never
    u_{k,j}         state.directions    (Q, p_m)                party     drawn from the public seed
    s_m = T(x, a)   embedding           (…, batch, embedding)   party     never
    h_m = s_m y_m   contribution        (1+Q, batch, C)         party     as an addend of a secure sum
    θ, ϑ            Gradient            (…, batch, C)           all       released by the coordinator
    v               solve.solution      (embedding, C)          party     never

`apply` takes the outcome of the round before, `contribute` makes the addend of the next one; both are pure.

torch holds what a network is differentiated by: x and what follows from it. What is linear in y is numpy's: on a batch
of a few kilobytes an operation of torch takes longer than the arithmetic.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from scipy.linalg import cho_factor, cho_solve
from torch import Tensor

from parley.numerics.arrays import Array, Vector
from parley.numerics.optimisers import Moments, descend, schedule
from parley.numerics.streams import directions, stream
from parley.party.bambi.models import EmbeddingModel
from parley.protocols.bambi.batches import lower_rows, upper_rows
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

Held = TypeVar("Held")


class OutcomeUnexpected(ValueError):
    """The coordinator sent an outcome that no contribution of this party waits for."""


class IllConditioned(ArithmeticError):
    """The lower problem cannot be solved in this precision."""


class OutcomeMisshapen(ValueError):
    """An outcome has another shape than the contribution that it answers."""


@dataclass(frozen=True)
class Block:
    """What stays fixed for a session: this party's data, its model and the run's settings."""

    settings: BambiSpec
    model: EmbeddingModel
    features: Array
    rows: RowSets
    seed: int
    index: int
    """This party's place among the blocks."""
    upper_sizes: tuple[int, ...]
    """p_m of every party; public, so that joint directions can be drawn by each."""
    outputs: int
    """Columns of h: classes, or 1."""

    @property
    def has_direct_term(self) -> bool:
        """Whether f depends on x_m directly (an embedding) and not only through y*."""
        return self.settings.problem == "hyper_representation"

    def linearises(self, k: int, t: int) -> bool:
        """Whether lower round (k, t) comes after the lower solve, only to fix θ for the implicit hyper-gradient."""
        settings = self.settings
        return settings.hypergradient == "implicit" and 1 <= k <= settings.upper.steps and t == settings.lower.steps

    def embeds_next(self, k: int, t: int) -> bool:
        """Whether lower round (k, t) is followed by another one on rows of its own, at the same x."""
        lower = self.settings.lower
        steps = lower.warmup_steps if k == 0 else lower.steps if k <= self.settings.upper.steps else lower.final_steps
        return lower.solver == "sgd" and (t + 1 < steps or self.linearises(k, t + 1))

    @property
    def span(self) -> slice:
        """This party's part of the joint upper vector."""
        start = sum(self.upper_sizes[: self.index])
        return slice(start, start + self.upper_sizes[self.index])


@dataclass(frozen=True)
class Solve:
    """A linear system H d = r under conjugate gradients (one reduction per iteration)."""

    solution: Array
    residual: Array
    direction: Array
    image: Array
    """H times the direction."""
    preconditioned: Array
    """M⁻¹ residual, z."""


class State(NamedTuple):
    """What a party learns. Only `x`, `y`, `moments` and `k` outlive an upper iteration."""

    x: Tensor
    y: Array
    moments: Moments
    k: int = 0
    """Upper iterations done."""
    trajectories: Array | None = None
    directions: Tensor | None = None
    embedding: Array | None = None
    """s_m of the lower batch, along every trajectory."""
    ahead: tuple[LowerForward, Array] | None = None
    """A lower round to come, and s_m of its batch."""
    theta: Array | None = None
    upper_embedding: Tensor | None = None
    """s_m of the upper batch, with its graph to x."""
    upper_weights: Tensor | None = None
    """x as the graph's leaf."""
    direct: Tensor | None = None
    upper_gradient: Array | None = None
    """∇_{y_m} f."""
    step: Array | None = None
    """Newton step d that the next gradient confirms or shortens."""
    solve: Solve | None = None
    factor: Array | None = None
    """Cholesky factor of the preconditioner."""
    awaiting: Ask | None = None
    """The ask that the next outcome answers."""


def upper_size(settings: BambiSpec, model: EmbeddingModel) -> int:
    """p_m: weights of the embedding, or regularisation coefficients."""
    if settings.problem == "hyper_representation":
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
    return State(x=x, y=y, moments=Moments.zeros(x))


def apply(block: Block, state: State, outcome: Outcome) -> State:
    """Take the outcome of the round before."""
    match outcome, state.awaiting:
        case Gradient(theta=theta, step_length=length), LowerForward(k=k, t=t) if theta is not None:
            s = _held(state.embedding)
            received = _received(theta, block, (*s.shape[:2], block.outputs))
            if block.settings.lower.solver == "newton":
                return _begin_newton(block, state, received[0], length)
            if block.linearises(k, t):
                return state._replace(theta=received[0], awaiting=None)
            return _lower_step(block, state, received, k)
        case Gradient(vartheta=vartheta), UpperForward(k=k) if vartheta is not None:
            shape = (len(_held(state.upper_embedding)), block.outputs)
            return _upper_gradient(block, state, _received(vartheta, block, shape), k)
        case Coefficients(values=values), DirectionalForward(k=k):
            _check_shape((len(values),), (block.settings.zeroth_order.directions,))
            return _zeroth_order_step(block, state, np.asarray(values), k)
        case CurvatureStep(solution_product=solution) as step, CurvatureForward(k=k, system=system):
            shape = (_held(state.embedding).shape[1], block.outputs)
            state = _conjugate_step(block, state, _received(step.product, block, shape), step)
            if solution is not None:
                return _implicit_step(block, state, _received(solution, block, shape), k)
            return state._replace(step=_held(state.solve).solution if system == "newton" else None)
    raise OutcomeUnexpected(
        f"{type(outcome).__name__} does not answer {type(state.awaiting).__name__}: "
        "coordinator and party are out of step"
    )


def _check_shape(came: tuple[int, ...], due: tuple[int, ...]) -> None:
    if came != due:
        raise OutcomeMisshapen(f"an outcome of shape {came} came where {due} is due")


def contribute(block: Block, state: State, ask: Ask) -> tuple[State, Vector]:
    """Make this party's addend of the round's sum."""
    if isinstance(ask, LowerForward):
        return _lower_forward(block, state, ask)
    state = state._replace(awaiting=ask)
    match ask:
        case UpperForward(k=k):
            return _upper_forward(block, state, k)
        case DirectionalForward():
            return state, _directional_shares(block, state)
        case CurvatureForward(system=system, iteration=iteration):
            return _curvature_forward(block, state, system, iteration)
        case RowsForward(rows=name, first=first, count=count):
            span = slice(first, first + count)
            rows = span if name == "all" else getattr(block.rows, name)[span]
            return state, predict(block.model, state.x, state.y, block.features[rows], block.has_direct_term)
    return state, np.empty(0)


def predict(model: EmbeddingModel, x: Tensor, y: Array, features: Array, embeds: bool) -> Vector:
    """h_m of some rows, flattened; `embeds` says whether x are the model's weights."""
    with torch.no_grad():
        s = model.apply(x, torch.from_numpy(features)).numpy() if embeds else features
    return _flat(s @ y)


def _lower_forward(block: Block, state: State, ask: LowerForward) -> tuple[State, Vector]:
    newton = block.settings.lower.solver == "newton"
    if ask.t == 0:
        state = _begin_iteration(block, state, ask.k)
    if newton and ask.t > 0:
        s = _held(state.embedding)  # every Newton step of an upper iteration sees the same batch
        state = state._replace(awaiting=ask)
    else:
        match state.ahead:
            case (known, s) if known == ask:
                pass
            case _:
                s = _lower_embedding(block, state, ask)
        state = state._replace(embedding=s, ahead=None, factor=None, awaiting=ask)
    if not newton:
        return state, _flat(s @ _held(state.trajectories))
    candidate = state.y if state.step is None else state.y + state.step
    penalty = regulariser(block, state.x)
    step = np.zeros_like(candidate) if state.step is None else state.step
    scalars = [np.sum(penalty * candidate**2), np.sum(penalty * step**2)]
    return state, _flat(s[0] @ candidate, *scalars)


def next_lower_batch(block: Block, state: State) -> LowerForward | None:
    """The next lower round, where its embedding can be made before its instruction comes."""
    ask = state.awaiting
    if isinstance(ask, LowerForward) and state.ahead is None and block.embeds_next(ask.k, ask.t):
        return LowerForward(ask.k, ask.t + 1)
    return None


def prefetch(block: Block, state: State) -> State:
    """Embed the next lower batch while this one's sum is on its way: no outcome of a lower round changes x."""
    ask = next_lower_batch(block, state)
    return state if ask is None else state._replace(ahead=(ask, _lower_embedding(block, state, ask)))


def _begin_iteration(block: Block, state: State, k: int) -> State:
    """Line 3 of Algorithm 1: every trajectory starts at y^{k−1,N}, along directions of its own."""
    zeroth = block.settings.zeroth_order
    copies = block.settings.trajectories if 1 <= k <= block.settings.upper.steps else 1
    joint = None
    if copies > 1:
        drawn = directions(block.seed, k, zeroth.directions, sum(block.upper_sizes), zeroth.kind)
        joint = torch.from_numpy(np.ascontiguousarray(drawn[:, block.span])).to(state.x.dtype)
    return state._replace(trajectories=np.repeat(state.y[None], copies, axis=0), directions=joint, step=None)


def _lower_embedding(block: Block, state: State, ask: LowerForward) -> Array:
    """s_m of the batch of a lower round, along every trajectory."""
    a = block.features.take(lower_rows(block.settings, block.rows, block.seed, ask.k, ask.t), axis=0)
    if block.model.kind == "identity":  # the features themselves, whatever x is
        copies = len(_held(state.trajectories))
        return a[None] if copies == 1 else np.broadcast_to(a, (copies, *a.shape))
    with torch.no_grad():
        if state.directions is None:
            return np.asarray(block.model.apply(state.x, torch.from_numpy(a)).numpy()[None])
        return np.asarray(block.model.apply_stack(_perturbed(block, state), torch.from_numpy(a)).numpy())


def _perturbed(block: Block, state: State) -> Tensor:
    """x, x + μu_1, …, x + μu_Q."""
    mu = block.settings.zeroth_order.smoothing
    return torch.cat([state.x.unsqueeze(0), state.x + mu * _held(state.directions)])


def regulariser(block: Block, x: Tensor) -> Array | float:
    """Coefficient of ‖y‖²: γ, or exp(x) for each party or feature; broadcasts against y (and stacks of it)."""
    return block.settings.regularisation if block.has_direct_term else np.exp(x.numpy())[..., None]


def _lower_step(block: Block, state: State, theta: Array, k: int) -> State:
    """Line 14: one gradient step on every trajectory, closed loop.

    Differs from the paper: ŷ^j is updated at ŷ^j (the printed line steps from y, which loses all but one step).
    """
    s, y = _held(state.embedding), _held(state.trajectories)
    x = state.x if state.directions is None else _perturbed(block, state)
    gradient = s.swapaxes(1, 2) @ theta
    gradient += 2 * regulariser(block, x) * y
    optimiser = block.settings.lower.optimiser
    if optimiser.clip is not None:
        norm = np.linalg.norm(gradient, axis=(1, 2), keepdims=True)
        gradient *= np.minimum(optimiser.clip / np.maximum(norm, 1e-30), 1.0)
    y = y - schedule(optimiser.step, optimiser.decay_from, k, block.settings.upper.steps) * gradient
    return state._replace(trajectories=y, y=y[0], awaiting=None)


def _upper_forward(block: Block, state: State, k: int) -> tuple[State, Vector]:
    a = torch.from_numpy(block.features[upper_rows(block.settings, block.rows, block.seed, k)])
    weights = state.x.detach().clone().requires_grad_(block.has_direct_term)
    s = block.model.apply(weights, a) if block.has_direct_term else a
    state = state._replace(upper_embedding=s, upper_weights=weights)
    return state, _flat(s.detach().numpy() @ state.y)


def _upper_gradient(block: Block, state: State, vartheta: Array, k: int) -> State:
    """∇_x f directly and ∇_{y_m} f, from ϑ (lines 21–23)."""
    s, weights = _held(state.upper_embedding), _held(state.upper_weights)
    upper_gradient = s.detach().numpy().T @ vartheta
    direct = torch.zeros_like(state.x)
    if block.has_direct_term:
        (direct,) = torch.autograd.grad(s, weights, torch.from_numpy(vartheta @ state.y.T))
    state = state._replace(
        direct=direct, upper_gradient=upper_gradient, upper_embedding=None, upper_weights=None, awaiting=None
    )
    if block.settings.hypergradient == "zeroth_order_local":
        return _zeroth_order_step(block, state, _directional_shares(block, state), k)
    return state


def _directional_shares(block: Block, state: State) -> Vector:
    """⟨ŷ_m^j − y_m, ∇_{y_m} f⟩/μ for each j."""
    y, gradient = _held(state.trajectories), _held(state.upper_gradient)
    shares: Vector = ((y[1:] - y[0]) * gradient).sum(axis=(1, 2)) / block.settings.zeroth_order.smoothing
    return shares


def _zeroth_order_step(block: Block, state: State, coefficients: Vector, k: int) -> State:
    """Eq. 5 with s_j summed over all parties.

    Differs from the paper: Eq. 5 uses the party's own ⟨ŷ_m^j − y_m, ∇_{y_m} f⟩ alone (`zeroth_order_local`), which
    drops ∂y_{m'}/∂x_m and is biased.
    """
    direct, u = _held(state.direct), _held(state.directions)
    weights = torch.from_numpy(coefficients / len(coefficients)).to(u.dtype)
    jacobian_term = weights @ u
    clip = block.settings.zeroth_order.jacobian_clip
    if clip is not None and block.has_direct_term:
        # Where Q ≪ p the noise of this term is √(p/Q) times its size: unbounded, it diverges.
        longest = clip * direct.norm()
        jacobian_term = jacobian_term * torch.clamp(longest / jacobian_term.norm().clamp_min(1e-30), max=1.0)
    return _upper_step(block, state, direct + jacobian_term, k)


def _upper_step(block: Block, state: State, hypergradient: Tensor, k: int) -> State:
    x, moments = descend(
        state.x, hypergradient, state.moments, block.settings.upper.optimiser, k, block.settings.upper.steps
    )
    return State(x=x, y=state.y, moments=moments, k=k)


def _begin_newton(block: Block, state: State, theta: Array, length: float) -> State:
    """Take the confirmed part of the last Newton step; the new residual is −∇_y g."""
    s = _held(state.embedding)
    y = state.y if state.step is None else state.y + length * state.step
    residual = -(s[0].T @ theta + 2 * regulariser(block, state.x) * y)
    return state._replace(y=y, theta=theta, step=None, solve=_begin_solve(residual), awaiting=None)


def _begin_solve(residual: Array) -> Solve:
    zero = np.zeros_like(residual)
    return Solve(solution=zero, residual=residual, direction=zero, image=zero, preconditioned=zero)


def _curvature_forward(block: Block, state: State, system: str, iteration: int) -> tuple[State, Vector]:
    """S_m z, Σ 2γ z·z and r·z with z = M⁻¹r; the coordinator adds what is missing of z·Hz itself."""
    if system == "adjoint" and iteration == 0:
        state = state._replace(solve=_begin_solve(_held(state.upper_gradient)))
    solve, s = _held(state.solve), _held(state.embedding)
    penalty = regulariser(block, state.x)
    z = solve.residual
    if block.settings.implicit.preconditioner:
        factor = _factor(block, s[0], penalty) if state.factor is None else state.factor
        state = state._replace(factor=factor)
        z = cho_solve((factor, True), z)
    state = state._replace(solve=replace(solve, preconditioned=z))
    scalars = [2 * np.sum(penalty * z**2), np.sum(solve.residual * z)]
    return state, _flat(s[0] @ z, *scalars)


def _factor(block: Block, s: Array, penalty: Array | float) -> Array:
    """Cholesky factor of this party's own block of the Hessian, with the curvature of an undecided prediction."""
    scale = {"softmax": (block.outputs - 1) / block.outputs**2, "logistic": 0.25, "squared": 1.0}
    gram = s.T @ s * (scale[block.settings.loss] / len(s))
    try:
        return np.asarray(cho_factor(gram + 2 * penalty * np.eye(len(gram), dtype=gram.dtype), lower=True)[0])
    except ValueError:  # not positive definite, or not finite
        raise IllConditioned(
            "this party's embedding is too badly scaled to precondition with: standardise the features, raise "
            "train.regularisation, or take dtype float64"
        ) from None


def _conjugate_step(block: Block, state: State, product: Array, step: CurvatureStep) -> State:
    """One iteration after Chronopoulos and Gear: α and β came with the product, so no second reduction is needed."""
    solve, s = _held(state.solve), _held(state.embedding)
    z = solve.preconditioned
    w = s[0].T @ product + 2 * regulariser(block, state.x) * z
    direction = z + step.beta * solve.direction
    image = w + step.beta * solve.image
    moved = replace(
        solve,
        solution=solve.solution + step.alpha * direction,
        residual=solve.residual - step.alpha * image,
        direction=direction,
        image=image,
    )
    return state._replace(solve=moved, awaiting=None)


def _implicit_step(block: Block, state: State, c: Array, k: int) -> State:
    """∇_x f − (∂²g/∂x∂y) v: with the factors held fixed, a gradient of inner products with T_m(x_m)."""
    theta, direct, v = _held(state.theta), _held(state.direct), _held(state.solve).solution
    x = state.x.detach().clone().requires_grad_()
    if block.has_direct_term:
        a = block.features[lower_rows(block.settings, block.rows, block.seed, k, block.settings.lower.steps)]
        s = block.model.apply(x, torch.from_numpy(a))
        (cross,) = torch.autograd.grad(s, x, torch.from_numpy(theta @ v.T + c @ state.y.T))
    else:
        (cross,) = torch.autograd.grad((2 * torch.exp(x)[:, None] * torch.from_numpy(state.y * v)).sum(), x)
    return _upper_step(block, state, direct - cross, k)


def _held(value: Held | None) -> Held:
    """A part of the state that an earlier round must have made."""
    if value is None:
        raise OutcomeUnexpected(
            "this round needs one that was not made before it: coordinator and party are out of step"
        )
    return value


def _received(array: Array, block: Block, shape: tuple[int, ...]) -> Array:
    _check_shape(array.shape, shape)
    return array.astype(block.features.dtype, copy=False)


def _flat(array: Array, *scalars: np.floating) -> Vector:
    """One vector for one message: an array in row-major order, then scalars."""
    flat = array.reshape(-1)
    return np.append(flat, np.array(scalars, flat.dtype)) if scalars else flat
