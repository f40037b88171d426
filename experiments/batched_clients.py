"""Many clients' small networks trained at once: SGP, HGP and the baselines of personalisation, as stacked arrays.

Row i of every matrix belongs to client i. One pass of autograd over the sum of all clients' losses gives each its own
gradient, and a step of Push-Sum is a product with the network's matrix, so that a hundred clients cost what their
arithmetic costs. The mathematics is that of `party.hgp.steps` (`track`), which a test compares this with. Batches are
drawn with replacement.

Baselines (Table 2 of the HGP paper): FedProx (Li et al. 2020), FedAvg+ (Jiang et al. 2019: the shared model, tuned by
each client), pFedMe (Dinh et al. 2020: a personal model near a shared one), FedEM (Marfoq et al. 2021: a mixture whose
weights are posteriors).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from parley.experiments.hgp_parties import Mixing
from parley.numerics.networks import links, metropolis_weights, push_weights
from parley.numerics.streams import stream

Logits = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(models (n, d), λ (n, h), inputs (n, b, p)) → logits or log-probabilities (n, b, C)."""
Averager = Callable[[int], Tensor | None]
"""The matrix of step s; None where nobody speaks to anybody."""


@dataclass(frozen=True)
class Clients:
    """Rows of n clients, padded to the longest."""

    features: Tensor
    """(n, r, p)."""
    labels: Tensor
    """(n, r)."""
    counts: Tensor
    """(n,): how many of the r rows are rows."""

    @classmethod
    def of(cls, parts: Sequence[tuple[NDArray[np.floating], NDArray[np.integer]]]) -> "Clients":
        """Stack (features, labels) of each client."""
        counts = torch.tensor([len(labels) for _, labels in parts])
        longest, width = int(counts.max()), parts[0][0].shape[1]
        features = torch.zeros(len(parts), longest, width, dtype=torch.as_tensor(parts[0][0]).dtype)
        labels = torch.zeros(len(parts), longest, dtype=torch.int64)
        for i, (rows, given) in enumerate(parts):
            features[i, : len(given)], labels[i, : len(given)] = torch.as_tensor(rows), torch.as_tensor(given)
        return cls(features, labels, counts)

    @property
    def present(self) -> Tensor:
        """(n, r): whether a place holds a row."""
        return torch.arange(self.labels.shape[1]) < self.counts[:, None]

    def batch(self, size: int, draw: np.random.Generator) -> tuple[Tensor, Tensor]:
        """`size` rows of each client, drawn with replacement; a client without rows gets padding, which weighs 0."""
        places = torch.from_numpy(draw.random((len(self.counts), size)))
        rows = (places * self.counts[:, None]).long()
        at = torch.arange(len(self.counts))[:, None]
        return self.features[at, rows], self.labels[at, rows]


@dataclass(frozen=True)
class Problem:
    """What all clients train on."""

    clients: Clients
    logits: Logits
    weight_decay: float
    hyper_decay: float

    def inner(self, x: Tensor, hyper: Tensor, batch: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """g_i of each client, on a batch or on all its rows."""
        decay = 0.5 * self.weight_decay * (x * x).sum(dim=1)
        return self._losses(x, hyper, batch) + decay

    def outer(self, x: Tensor, hyper: Tensor) -> Tensor:
        """f_i of each client."""
        return self._losses(x, hyper, None) + 0.5 * self.hyper_decay * (hyper * hyper).sum(dim=1)

    def _losses(self, x: Tensor, hyper: Tensor, batch: tuple[Tensor, Tensor] | None) -> Tensor:
        features, labels = (self.clients.features, self.clients.labels) if batch is None else batch
        scores = self.logits(x, hyper, features)
        losses = functional.cross_entropy(scores.flatten(0, 1), labels.flatten(), reduction="none").reshape_as(labels)
        if batch is not None:
            return losses.mean(dim=1) * (self.clients.counts > 0)
        return (losses * self.clients.present).sum(dim=1) / self.clients.counts.clamp(min=1)


@dataclass(frozen=True)
class Steps:
    """How the shared variables are trained in one stretch."""

    count: int
    rate: float
    batch: int | None = 128
    decay_at: tuple[float, ...] = (5 / 6, 11 / 12)
    """Parts of the stretch after which the rate is a tenth of what it was."""

    def rate_at(self, step: int) -> float:
        """The rate of a step."""
        return self.rate * 0.1 ** sum(step >= int(self.count * part) for part in self.decay_at)

    def batches(self, clients: Clients, seed: int, k: int) -> Iterator[tuple[float, tuple[Tensor, Tensor] | None]]:
        """Rate and batch of each step of stretch k."""
        draw = stream(seed, "batched.rows", k)
        for step in range(self.count):
            yield self.rate_at(step), None if self.batch is None else clients.batch(self.batch, draw)


def averager(mixing: Mixing) -> Averager:
    """The matrices of a network."""

    def matrix(step: int) -> Tensor:
        drawn = links(mixing.plan, step)
        weights = metropolis_weights(drawn) if mixing.doubly_stochastic else push_weights(drawn)
        return torch.from_numpy(weights)

    if mixing.plan.static:
        once = matrix(0)
        return lambda _: once
    return matrix


def gradient(problem: Problem, x: Tensor, hyper: Tensor, batch: tuple[Tensor, Tensor] | None) -> Tensor:
    """∂_x g_i of each client."""
    point = x.detach().requires_grad_()
    (found,) = torch.autograd.grad(problem.inner(point, hyper, batch).sum(), point)
    return found


def train_sgp(
    problem: Problem, x: Tensor, hyper: Tensor, steps: Steps, network: Averager, *, seed: int, k: int, first: int = 0
) -> Tensor:
    """One stretch of SGP from each client's own model."""
    z, weight = x, torch.ones(len(x), 1, dtype=x.dtype)
    for s, (rate, batch) in enumerate(steps.batches(problem.clients, seed, k)):
        z = z - rate * gradient(problem, z / weight, hyper, batch)
        matrix = network(first + s)
        if matrix is not None:
            z, weight = _pushed(matrix, z, weight)
    return z / weight


def hyper_gradient(
    problem: Problem,
    x: Tensor,
    hyper: Tensor,
    network: Averager,
    *,
    rounds: int,
    push_steps: int,
    eta: float,
    first: int,
) -> Tensor:
    """v_i of each client: HGP in the form `track`, all rows in every product."""
    point, lam = x.detach().requires_grad_(), hyper.detach().requires_grad_()
    u, v = torch.autograd.grad(problem.outer(point, lam).sum(), (point, lam))
    z, weight = u, torch.ones(len(x), 1, dtype=x.dtype)
    (slope,) = torch.autograd.grad(problem.inner(point, lam).sum(), point, create_graph=True)
    for m in range(rounds):
        for s in range(push_steps):
            matrix = network(first + m * push_steps + s)
            if matrix is not None:
                z, weight = _pushed(matrix, z, weight)
        u_bar = z / weight
        hessian, jacobian = torch.autograd.grad(slope, (point, lam), u_bar, retain_graph=True, materialize_grads=True)
        v, z = v - eta * jacobian, z - eta * hessian
    return v


def train_locally_averaged(
    problem: Problem, x: Tensor, hyper: Tensor, steps: Steps, *, local_steps: int, near: float, seed: int, k: int
) -> Tensor:
    """FedAvg with local steps by a server; near > 0 is FedProx's (near/2)‖x_i − x̄‖²."""
    centre = x.mean(dim=0, keepdim=True)
    x = centre.expand_as(x)
    for s, (rate, batch) in enumerate(steps.batches(problem.clients, seed, k)):
        x = x - rate * (gradient(problem, x, hyper, batch) + near * (x - centre))
        if (s + 1) % local_steps == 0 or s + 1 == steps.count:
            centre = x.mean(dim=0, keepdim=True)
            x = centre.expand_as(x)
    return x


def train_moreau(
    problem: Problem,
    shared: Tensor,
    personal: Tensor,
    hyper: Tensor,
    steps: Steps,
    *,
    near: float,
    inner_steps: int,
    shared_rate: float,
    seed: int,
    k: int,
) -> tuple[Tensor, Tensor]:
    """pFedMe: θ_i ≈ argmin g_i + (near/2)‖θ − w‖² by `inner_steps`, then w ← mean of w − shared_rate·near·(w − θ_i)."""
    for s, (rate, batch) in enumerate(steps.batches(problem.clients, seed, k)):
        personal = personal - rate * (gradient(problem, personal, hyper, batch) + near * (personal - shared))
        if (s + 1) % inner_steps == 0:
            moved = shared - shared_rate * near * (shared - personal)
            shared = moved.mean(dim=0, keepdim=True).expand_as(personal)
    return shared, personal


def posterior_weights(problem: Problem, x: Tensor, hyper: Tensor, parts: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """FedEM's weights, as logits: the mean over a client's rows of what each component has to do with it.

    `parts` gives the components' log-probabilities (n, components, rows, C).
    """
    with torch.no_grad():
        clients = problem.clients
        scores = parts(x, clients.features)
        chosen = clients.labels[:, None, :, None].expand(-1, scores.shape[1], -1, 1)
        joint = scores.gather(3, chosen)[..., 0] + functional.log_softmax(hyper, dim=1)[:, :, None]
        shares = torch.softmax(joint, dim=1) * clients.present[:, None]
        return torch.log(shares.sum(dim=2) / clients.counts.clamp(min=1)[:, None] + 1e-12)


def _pushed(matrix: Tensor, z: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    matrix = matrix.to(z.dtype)
    return matrix @ z, matrix @ weight
