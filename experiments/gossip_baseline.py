"""GBDSBO, the baseline of the LDP-DSBO paper that gossips whole matrices, with the paper's noise added.

S. Yang, X. Zhang and M. Wang, "Decentralized gossip-based stochastic bilevel optimization over communication
networks" (2022). One loop: agents mix x, y and running averages of ∇_y f, of the Jacobian ∇²_xy g and of the Hessian
∇²_yy g, and apply the Hessian's inverse by a Neumann series. p·q + q² numbers cross where LDP-DSBO sends p + 2q.

A baseline, not a product: all agents live in one array, and no ε is claimed for it. Every number that crosses carries
Laplace noise of the LDP-DSBO paper's rates, 1/√2·(t+1)^−(0.8+0.01 i).

differs from the published method: one average of the Hessian serves every term of the Neumann series, where the
original keeps an independent one for each; and variables are projected to the boxes that LDP-DSBO has.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parley.numerics.streams import batch, stream
from parley.party.ldp_dsbo.objectives import Bounds, Records, directions
from parley.party.ldp_dsbo.steps import Agent

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Gbdsbo:
    """The settings of a run."""

    step_size: float
    """Of y, of x, and η of the Neumann series."""
    averaging: float = 0.3
    """β: weight of the newest estimate in the running averages."""
    steps: int = 100
    """T."""
    terms: int = 10
    """Terms of the Neumann series."""
    batch_size: int = 50
    """Records per estimate."""
    noise: bool = True
    """Whether messages carry Laplace noise."""
    seed: int = 0
    """Seed of batches and of the (experimental) noise."""


@dataclass(frozen=True)
class Estimates:
    """What one batch of each agent says, stacked over agents."""

    lower_gradient: Array
    """∇_y g: (agents, q)."""
    upper_gradient: Array
    """∇_y f: (agents, q)."""
    jacobian: Array
    """∇²_xy g: (agents, p, q); here diag(e^λ ω), which the method sends as a whole all the same."""
    hessian: Array
    """∇²_yy g: (agents, q, q)."""


def run_gbdsbo(agents: Sequence[Agent], weights: Array, bounds: Bounds, size: int, settings: Gbdsbo) -> Array:
    """Return the agents' y, one per row."""
    x, y, h = (np.zeros((len(agents), size)) for _ in range(3))
    jacobian, hessian = (np.zeros((len(agents), size, size)) for _ in range(2))
    beta, step = settings.averaging, settings.step_size
    for t in range(settings.steps):
        fresh = estimates(agents, bounds, settings, x, y, t)
        mixed = [
            _mix(weights, each, settings, t, name)
            for name, each in (("x", x), ("y", y), ("h", h), ("j", jacobian), ("H", hessian))
        ]
        z = neumann(hessian, h, step, settings.terms)
        x = np.clip(mixed[0] + step * np.einsum("ipq,iq->ip", jacobian, z), bounds.x_low, bounds.x_high)
        y = np.clip(mixed[1] - step * fresh.lower_gradient, -bounds.y_max, bounds.y_max)
        h = (1.0 - beta) * mixed[2] + beta * fresh.upper_gradient
        jacobian = (1.0 - beta) * mixed[3] + beta * fresh.jacobian
        hessian = (1.0 - beta) * mixed[4] + beta * fresh.hessian
    return y


def estimates(agents: Sequence[Agent], bounds: Bounds, settings: Gbdsbo, x: Array, y: Array, t: int) -> Estimates:
    """Return every agent's estimates from its batches of step t, at its own point."""
    lists: tuple[list[Array], ...] = ([], [], [], [])
    for i, agent in enumerate(agents):
        lower, upper = (_batch(agent, kind, settings, t) for kind in ("lower", "upper"))
        zero = np.zeros(y.shape[1])
        found = directions(lower, upper, bounds, x[i], y[i], zero)  # at z = 0 the third direction is −∇_y f
        p = 0.5 * (1.0 + np.tanh(0.5 * (lower.features @ y[i])))
        curved = (lower.features.T * (bounds.loss_scale * p * (1.0 - p))) @ lower.features / len(p)
        diagonals = np.diag(np.exp(x[i]) * y[i]), curved + np.diag(np.exp(x[i]))
        for kept, each in zip(lists, (found.y, -found.z, *diagonals), strict=True):
            kept.append(each)
    return Estimates(*(np.stack(kept) for kept in lists))


def neumann(hessian: Array, h: Array, eta: float, terms: int) -> Array:
    """Return η Σ_k (I − ηH)^k h, which tends to H⁻¹h where η‖H‖ < 2, for every agent."""
    total, power = np.zeros_like(h), h
    for _ in range(terms):
        total = total + eta * power
        power = power - eta * np.einsum("ipq,iq->ip", hessian, power)
        power = np.clip(power, -1e100, 1e100)  # a diverging series shall end in a bad model, not in NaN
    return total


def _mix(weights: Array, values: Array, settings: Gbdsbo, t: int, name: str) -> Array:
    flat = values.reshape(len(values), -1)
    apart = weights - np.diag(np.diag(weights))
    sent = flat
    if settings.noise:
        scales = 1.0 / (np.sqrt(2.0) * (t + 1.0) ** (0.8 + 0.01 * np.arange(1, len(values) + 1)))
        sent = flat + stream(settings.seed, f"gbdsbo.noise.{name}", 0, t).laplace(size=flat.shape) * scales[:, None]
    return np.asarray(flat + apart @ sent + np.diag(weights)[:, None] * flat).reshape(values.shape)


def _batch(agent: Agent, kind: str, settings: Gbdsbo, t: int) -> Records:
    records = getattr(agent, kind)
    assert isinstance(records, Records)  # noqa: S101 (the baseline is for hyper-parameters)
    name = f"gbdsbo.{kind}.{agent.member}"
    return records.take(batch(settings.seed, name, 0, t, len(records.labels), settings.batch_size))
