"""What the FedBiO family is compared with: FedAvg, and hyper-gradients that take several rounds each (FedNest).

McMahan et al., "Communication-efficient learning of deep networks from decentralized data", 2017 (FedAvg); Tarzanagh
et al., "FedNest: federated bilevel, minimax and compositional optimization", 2022, of which `fednest` keeps what the
FedBiO paper compares: averaged Neumann terms, one communication round each, before every upper step. Compressed sums
with error feedback make it CommFedBiO (Li, Huang, Huang, 2022), products by one drawn client FedMBO (Huang, Zhang, Ji,
2023), both reduced to that. All run in one process and see every party's objective; they are yardsticks, not roles.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from parley.numerics.storm import Vector
from parley.numerics.streams import stream
from parley.party.fedbio.objectives import BilevelObjective
from parley.party.fedbio.steps import Randomness


@dataclass(frozen=True, slots=True)
class NestSettings:
    """Steps of the FedNest-style baseline."""

    eta: float
    gamma: float
    tau: float
    """Scale of the Neumann series."""
    neumann_rounds: int
    """Communication rounds for one hyper-gradient."""
    local_steps: int
    lower_rounds: int = 1
    """Averages of y for each upper step."""
    shared_upper: bool = True
    share_sent: float = 1.0
    """Share of a Hessian product's entries, the largest, that a party sends; what it keeps back goes with the next."""
    one_client: bool = False
    """Whether each Hessian product is made by one party that is drawn, instead of by all."""
    lower_batch: int = 64
    upper_batch: int = 64


def fedavg(
    objectives: Sequence[BilevelObjective],
    weights: Sequence[Vector],
    y: Vector,
    *,
    rounds: int,
    local_steps: int,
    gamma: float,
    seed: int,
    lower_batch: int = 64,
    observe: Callable[[int, Vector], None] = lambda _k, _y: None,
) -> Vector:
    """Local SGD on the lower problem alone, with the upper variable fixed at `weights`, one vector for each party."""
    for k in range(rounds):
        y = _local_lower(objectives, weights, y, k, local_steps, gamma, lower_batch, seed)
        observe(k, y)
    return y


def fednest(
    objectives: Sequence[BilevelObjective],
    x: Sequence[Vector],
    y: Vector,
    settings: NestSettings,
    *,
    rounds: int,
    seed: int,
    observe: Callable[[int, Vector], None] = lambda _k, _y: None,
) -> tuple[list[Vector], Vector, int]:
    """Return x by party, y and the number of upper steps that `rounds` communication rounds paid for.

    An upper step costs `lower_rounds` averages of y, one of ∇_y f, `neumann_rounds` of Hessian products, and one of the
    hyper-gradient if x is shared.
    """
    x = list(x)
    cost = settings.lower_rounds + 1 + settings.neumann_rounds + int(settings.shared_upper)
    epochs = rounds // cost
    for epoch in range(epochs):
        for inner in range(settings.lower_rounds):
            k = epoch * settings.lower_rounds + inner
            y = _local_lower(objectives, x, y, k, settings.local_steps, settings.gamma, settings.lower_batch, seed)
        u = _federated_inverse(objectives, x, y, settings, epoch, seed)
        directions = []
        for m, objective in enumerate(objectives):
            randomness = Randomness(seed, f"nest/{m}")
            upper_rows = randomness.rows("upper", epoch, 1, objective.upper_rows, settings.upper_batch)
            lower_rows = randomness.rows("cross", epoch, 0, objective.lower_rows, settings.lower_batch)
            cross = objective.lower_terms(x[m], y, u, lower_rows).cross
            directions.append(objective.upper_gradients(x[m], y, upper_rows).x - cross)
        if settings.shared_upper:
            directions = [np.mean(directions, axis=0)] * len(directions)
        x = [x_m - settings.eta * direction for x_m, direction in zip(x, directions, strict=True)]
        observe((epoch + 1) * cost, y)
    return x, y, epochs


def _federated_inverse(
    objectives: Sequence[BilevelObjective],
    x: Sequence[Vector],
    y: Vector,
    settings: NestSettings,
    epoch: int,
    seed: int,
) -> Vector:
    """τ Σ_q Π (I − τH̄) b̄: every product is an average over the parties, hence a round."""
    sources = [Randomness(seed, f"nest/{m}") for m in range(len(objectives))]
    term: Vector = np.mean(
        [
            o.upper_gradients(x_m, y, source.rows("upper", epoch, 0, o.upper_rows, settings.upper_batch)).y
            for o, x_m, source in zip(objectives, x, sources, strict=True)
        ],
        axis=0,
    )
    total = term
    kept_back: list[Vector] = [np.zeros_like(term) for _ in objectives]
    for j in range(settings.neumann_rounds):
        drawn = range(len(objectives))
        if settings.one_client:
            one = int(stream(seed, "nest/drawn", epoch, j).integers(len(objectives)))
            drawn = range(one, one + 1)
        products = []
        for m in drawn:
            rows = sources[m].rows(f"hessian/{j}", epoch, 0, objectives[m].lower_rows, settings.lower_batch)
            wanted = objectives[m].hessian_product(x[m], y, term, rows) + kept_back[m]
            sent = largest_entries(wanted, settings.share_sent)
            kept_back[m] = wanted - sent
            products.append(sent)
        term = term - settings.tau * np.mean(products, axis=0)
        total = total + term
    return settings.tau * total


def largest_entries(vector: Vector, share: float) -> Vector:
    """The vector with all but its largest entries set to zero."""
    if share >= 1:
        return vector
    kept = np.argsort(-np.abs(vector), kind="stable")[: max(1, round(share * vector.size))]
    sent = np.zeros_like(vector)
    sent[kept] = vector[kept]
    return sent


def _local_lower(
    objectives: Sequence[BilevelObjective],
    x: Sequence[Vector],
    y: Vector,
    k: int,
    local_steps: int,
    gamma: float,
    lower_batch: int,
    seed: int,
) -> Vector:
    """One round of local SGD on g."""
    locals_ = []
    for m, objective in enumerate(objectives):
        randomness, y_m = Randomness(seed, f"average/{m}"), y
        for t in range(local_steps):
            rows = randomness.rows("lower", k, t, objective.lower_rows, lower_batch)
            y_m = y_m - gamma * objective.lower_terms(x[m], y_m, np.zeros_like(y_m), rows).gradient
        locals_.append(y_m)
    averaged: Vector = np.mean(locals_, axis=0)
    return averaged
