"""MA-DSBO, the nested-loop baseline of the LDP-DSBO paper, with the paper's noise added (its Algorithm 3).

X. Chen, M. Huang, S. Ma and K. Balasubramanian, "Decentralized stochastic bilevel optimization with improved
per-iteration complexity" (2023). K inner steps on y, N on the Hessian-inverse product z with gradient tracking, then
one step on x along a moving average.

A baseline, not a product: all agents live in one array, and no ε is claimed for it. Noise follows the first design
of the LDP-DSBO paper's appendix H.1, which decays over outer and inner iterations, ((t+1)(k+1))^−ς, with the
fastest of the paper's rates on every variable. Gradients come from fresh mini-batches, as published, or from all
records acquired so far, as LDP-DSBO's do; the second is not in the paper and is there to tell the effect of the
oracle from that of the loops.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parley.numerics.streams import batch, stream
from parley.party.ldp_dsbo.objectives import Bounds, Directions
from parley.party.ldp_dsbo.softmax import SoftmaxBounds
from parley.party.ldp_dsbo.steps import Agent, TaskRecords, task_directions

Matrix = NDArray[np.float64]


@dataclass(frozen=True)
class MaDsbo:
    """The settings of a run."""

    step_size: float
    """β on y; α on x is the same, γ on z a third of it, in the proportion of the paper's A.2.1."""
    outer: int = 10
    """T."""
    inner: int = 10
    """K = N."""
    batch_size: int = 50
    """Records per gradient."""
    history: bool = False
    """Whether gradients cover all records so far instead of a fresh batch."""
    noise: bool = True
    """Whether messages carry Laplace noise."""
    seed: int = 0
    """Seed of batches and of the (experimental) noise."""


@dataclass
class _Run:
    """One run: the agents, and a counter that gives every gradient its own batch and every message its own noise."""

    agents: Sequence[Agent]
    weights: Matrix
    bounds: Bounds | SoftmaxBounds
    settings: MaDsbo
    calls: int = 0

    def directions(self, x: Matrix, y: Matrix, z: Matrix, step: int) -> list[Directions]:
        self.calls += 1
        return [
            task_directions(
                self.bounds,
                self._records(agent, "lower", step),
                self._records(agent, "upper", step),
                x[i],
                y[i],
                z[i],
            )
            for i, agent in enumerate(self.agents)
        ]

    def mix(self, values: Matrix, t: int, k: int) -> Matrix:
        """Return values + Σ_j w_ij (noised_j − own), the own value without noise."""
        self.calls += 1
        own = np.diag(self.weights)[:, None]
        apart = self.weights - np.diag(np.diag(self.weights))
        return values + apart @ (values + self._noise(values.shape, t, k)) + own * values

    @property
    def boxes(self) -> Bounds:
        return self.bounds.enforced if isinstance(self.bounds, SoftmaxBounds) else self.bounds

    def _records(self, agent: Agent, kind: str, step: int) -> TaskRecords:
        records: TaskRecords = getattr(agent, kind)
        size = self.settings.batch_size
        if self.settings.history:
            return records.take(slice(0, (step + 1) * size))
        name = f"ma.{kind}.{agent.member}"
        return records.take(batch(self.settings.seed, name, 0, self.calls, len(records.labels), size))

    def _noise(self, shape: tuple[int, ...], t: int, k: int) -> Matrix:
        if not self.settings.noise:
            return np.zeros(shape)
        rates = 0.8 + 0.01 * np.arange(1, shape[0] + 1)
        scales = 1.0 / (np.sqrt(2.0) * ((t + 1.0) * (k + 1.0)) ** rates)
        draw = stream(self.settings.seed, "ma.noise", 0, self.calls)
        return np.asarray(draw.laplace(size=shape) * scales[:, None])


def run_ma_dsbo(
    agents: Sequence[Agent], weights: Matrix, bounds: Bounds | SoftmaxBounds, size: int, settings: MaDsbo
) -> Matrix:
    """Return the agents' y, one per row; `size` is the length of x."""
    run = _Run(agents, weights, bounds, settings)
    beta, inner, boxes = settings.step_size, settings.inner, run.boxes
    x, average = np.full((len(agents), size), boxes.initial), np.zeros((len(agents), size))
    y = np.zeros((len(agents), bounds.y_size if isinstance(bounds, SoftmaxBounds) else size))
    for t in range(settings.outer):
        for k in range(inner):
            gradient = np.stack([d.y for d in run.directions(x, y, np.zeros_like(y), t * inner + k)])
            y = np.clip(run.mix(y, t, k) - beta * gradient, -boxes.y_max, boxes.y_max)
        z = _inverse_product(run, x, y, t)
        x = np.clip(run.mix(x, t, 0) - beta * average, boxes.x_low, boxes.x_high)
        products = (y * z).reshape(len(agents), -1, size).sum(axis=1)  # over the classes, where there are more than two
        average = (1.0 - beta) * average + beta * (-np.exp(x) * products)
    return y


def _inverse_product(run: _Run, x: Matrix, y: Matrix, t: int) -> Matrix:
    """Lines 9–15 of the paper's Algorithm 3: z by gradient tracking."""
    inner, limit = run.settings.inner, run.boxes.z_max
    z = np.zeros_like(y)
    residual = np.stack([d.z for d in run.directions(x, y, z, t * inner)])
    tracker = residual
    for k in range(inner):
        z = np.clip(run.mix(z, t, k) - run.settings.step_size / 3.0 * tracker, -limit, limit)
        fresh = np.stack([d.z for d in run.directions(x, y, z, t * inner + k)])
        tracker = run.mix(tracker, t, k) + fresh - residual
        residual = fresh
    return z
