"""Local rounds of BAMBI at a party: an exchange, then many steps on its own block with the others' part held.

Where both levels have the same rows and the upper objective is the lower one at its solution, the direct term is the
whole hyper-gradient (Danskin), and x and y descend on one function. A party needs the sum of the others for that, which
it gets once for many steps.

Symbol map:

    here      code              shape                  held by       leaves?
    z = x, y  state.point       (p_m,), (embedding, C) party         never
    o         own               (rows, C)              party         as an addend of a secure sum, at an exchange
    h         work.logits       (rows, C − 1)          all           a sum over all parties
    ỹ         work.labels       (rows,) or (rows, C)   all           released by the coordinator
    κ         block.amplification                      public
    K         work.steps                               public

A party's own change counts κ times, with κ the number of parties: the loss is convex in h, so
loss(h + Σ_m Δ_m) ≤ (1/κ) Σ_m loss(h + κ Δ_m), and if every party lowers what it sees, the joint loss on these rows
cannot rise, whatever the networks and however many the steps.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from parley.numerics.arrays import Array, Vector
from parley.numerics.losses import Loss, one_hot
from parley.numerics.optimisers import AdamInPlace, Moments, schedule
from parley.numerics.streams import stream
from parley.party.bambi.steps import Block, OutcomeMisshapen, OutcomeUnexpected, predict, start
from parley.protocols.bambi.batches import local_rows, steps_of_a_pass
from parley.protocols.bambi.columns import reduced, widened
from parley.protocols.bambi.messages import LocalForward, LocalWork, RowsForward

MOVES = 2
"""Earlier moves that a party can go on along."""
SHORTEST_WEIGHT, LONGEST_WEIGHT = -1.0, 3.0
"""Of an earlier move; from all of it taken back to three times as much again."""


BothMoments = tuple[Moments[Tensor], Moments[Tensor]]
"""Adam's, of x and of y."""


class Point(NamedTuple):
    """What a party has learnt."""

    x: Tensor
    y: Tensor


class LocalState(NamedTuple):
    """A party between two rounds."""

    point: Point
    moments: BothMoments
    past: tuple[Point, ...] = ()
    """Where the party stood at the last exchanges, the newest first."""
    k: int = 0
    """Exchanges whose local steps are done."""
    asked: LocalForward | None = None
    """The exchange whose sum is awaited."""


@dataclass(frozen=True)
class LocalBlock:
    """A party's block, and the loss that fits the labels that it will get."""

    block: Block
    loss: Loss

    @property
    def amplification(self) -> int:
        """κ."""
        return len(self.block.upper_sizes)

    @property
    def most_steps(self) -> int:
        """The most local steps that the run may ask for."""
        local = self.block.settings.local
        most = local.epochs * steps_of_a_pass(self.block.settings, min(local.rows, len(self.block.rows.lower)))
        return max(local.least_steps, most)


def begin(block: Block) -> LocalState:
    """Before the first round, at the point where every mode begins."""
    state = start(block)
    point = Point(state.x, torch.from_numpy(state.y))
    return LocalState(point, (Moments.zeros(point.x), Moments.zeros(point.y)))


def contribute(block: LocalBlock, state: LocalState, ask: LocalForward | RowsForward) -> tuple[LocalState, Vector]:
    """This party's addend: of the rows of a round less their last class, or of rows of an evaluation."""
    whole = block.block
    if isinstance(ask, RowsForward):
        span = slice(ask.first, ask.first + ask.count)
        rows: slice | Array = span if ask.rows == "all" else getattr(whole.rows, ask.rows)[span]
        return state, reduced(_logits(block, state.point, whole.features[rows]), whole.columns).reshape(-1)
    if ask.k != state.k + 1:
        raise OutcomeUnexpected(f"exchange {ask.k} was asked for where {state.k + 1} is due")
    own = _logits(block, state.point, _features(block, ask))
    return state._replace(asked=ask), reduced(own, whole.columns).reshape(-1)


def apply(block: LocalBlock, state: LocalState, work: LocalWork) -> LocalState:
    """Go on along earlier moves as far as the run says, then make the local steps."""
    if state.asked is None:
        raise OutcomeUnexpected("the work of a local round came where no exchange is awaited")
    features = _features(block, state.asked)
    h, target = _checked(block, state, work, len(features))
    begun = _moved(state, work.weights)
    others = h - block.amplification * _logits(block, begun, features)
    point, moments = _stepped(block, begun, state.moments, _Exchanged(state.asked.k, features, others, target), work)
    return LocalState(point, moments, (state.point, *state.past)[:MOVES], state.asked.k)


def _checked(block: LocalBlock, state: LocalState, work: LocalWork, count: int) -> tuple[Array, Array]:
    """The sum and the target rows, if they are what this exchange can have."""
    outputs, dtype = block.block.outputs, block.block.features.dtype
    due = (count, block.block.columns)
    if work.logits.shape != due:
        raise OutcomeMisshapen(f"a sum of shape {work.logits.shape} came where {due} is due")
    if not 1 <= work.steps <= block.most_steps:
        raise OutcomeMisshapen(f"{work.steps} local steps were asked for; the run has at most {block.most_steps}")
    if len(work.weights) > len(state.past):
        raise OutcomeMisshapen(f"{len(work.weights)} earlier moves were named; there are {len(state.past)}")
    if not all(SHORTEST_WEIGHT <= weight <= LONGEST_WEIGHT for weight in work.weights):
        raise OutcomeMisshapen(f"weights of moves lie between {SHORTEST_WEIGHT:g} and {LONGEST_WEIGHT:g}")
    return widened(work.logits.astype(dtype), outputs), _target(work.labels, count, outputs).astype(dtype)


def _target(labels: Array, count: int, outputs: int) -> Array:
    if labels.ndim == 1:
        if len(labels) != count or labels.max(initial=0) >= max(outputs, 2):
            raise OutcomeMisshapen(f"{len(labels)} classes came for {count} rows of {max(outputs, 2)} classes")
        return one_hot(labels, outputs) if outputs > 1 else labels[:, None]
    if labels.shape != (count, outputs):
        raise OutcomeMisshapen(f"target rows of shape {labels.shape} came where {(count, outputs)} is due")
    return labels


def _moved(state: LocalState, weights: tuple[float, ...]) -> Point:
    """z + Σ_i c_i (z_{−i} − z_{−i−1})."""
    points = (state.point, *state.past)
    x, y = state.point
    for weight, newer, older in zip(weights, points, points[1:], strict=False):
        x = x + weight * (newer.x - older.x)
        y = y + weight * (newer.y - older.y)
    return Point(x, y)


class _Exchanged(NamedTuple):
    """The rows of a round, as the local steps read them."""

    k: int
    features: Array
    others: Array
    """h − κ o: what stays when this party's logits are amplified."""
    target: Array

    def taken(self, rows: Array | None) -> tuple[Array, Array, Array]:
        """Features, others and target of some rows, or of all."""
        if rows is None:
            return self.features, self.others, self.target
        return self.features.take(rows, 0), self.others.take(rows, 0), self.target.take(rows, 0)


def _stepped(
    block: LocalBlock, begun: Point, moments: BothMoments, rows: _Exchanged, work: LocalWork
) -> tuple[Point, BothMoments]:
    """K steps of x and y: θ at ĥ = h + κ(s y − o), then g_y = sᵀθ + 2γy and g_x = J_sᵀ[θ yᵀ].

    x and y are one vector here. Sizes fall to zero within a round, so that the model is at rest at every exchange.
    """
    whole, local = block.block, block.block.settings.local
    cut = begun.x.numel()
    sizes = np.full(cut + begun.y.numel(), local.upper_step, whole.features.dtype)
    sizes[cut:] = local.lower_step
    first, second = _joined(*(each.first for each in moments)), _joined(*(each.second for each in moments))
    adam = AdamInPlace(_joined(*begun), Moments(first, second, moments[1].count), work.step_scale * sizes)
    x, y = adam.x[:cut], adam.x[cut:].reshape(begun.y.shape)
    gradient = np.empty_like(adam.x)
    for t, some in enumerate(_minibatches(block, rows.k, len(rows.features), work.steps)):
        features, others, target = rows.taken(some)
        s, pullback = whole.model.with_pullback(x, features)
        h = s @ y
        h *= block.amplification
        h += others
        theta = block.loss.gradient(h, target)
        gradient[cut:] = (s.T @ theta + 2 * whole.settings.regularisation * y).reshape(-1)
        gradient[:cut] = pullback(theta @ y.T)
        adam.step(gradient, schedule(1.0, 0.0, t + 1, work.steps))
    reached = adam.moments
    point, mean, square = (_parted(each, begun) for each in (adam.x, reached.first, reached.second))
    return point, (Moments(mean.x, square.x, reached.count), Moments(mean.y, square.y, reached.count))


def _joined(x: Tensor, y: Tensor) -> Vector:
    return np.concatenate([x.numpy(), y.numpy().reshape(-1)])


def _parted(joined: Vector, like: Point) -> Point:
    cut = like.x.numel()
    return Point(torch.from_numpy(joined[:cut]), torch.from_numpy(joined[cut:].reshape(like.y.shape)))


def _minibatches(block: LocalBlock, k: int, count: int, steps: int) -> Iterator[Array | None]:
    """Rows of each local step: all of them (None) in the fewest steps and below a pass, else drawn anew each pass."""
    settings = block.block.settings
    size, per_pass = settings.local.minibatch, steps_of_a_pass(settings, count)
    if steps < per_pass or steps <= settings.local.least_steps or size >= count:
        yield from repeat(None, steps)
        return
    order: Array = np.empty(0, dtype=np.int64)
    for t in range(steps):
        turn, place = divmod(t, per_pass)
        if place == 0:
            words = stream(block.block.seed, f"local/{block.block.index}", k, turn).bit_generator.random_raw(count)
            order = np.argsort(words, kind="stable")
        yield order[place * size : (place + 1) * size]


def _features(block: LocalBlock, ask: LocalForward) -> Array:
    whole = block.block
    return whole.features[local_rows(whole.settings, whole.rows, whole.seed, ask.batch)]


def _logits(block: LocalBlock, point: Point, features: Array) -> Array:
    """h_m of some rows."""
    whole = block.block
    return predict(whole.model, point.x, point.y.numpy(), features, whole.has_direct_term)
