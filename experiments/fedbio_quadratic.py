"""fedbio-quadratic: how far from the solution does each member of the FedBiO family stop, where it is known exactly?

Eight heterogeneous quadratic clients (M = 8), deterministic gradients. The paper has no such table: the case shows its
three claims in isolation, namely that averaging local hyper-gradients is biased, that u mends it, and that STORM with
averaged momenta shrinks the drift of local steps.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from parley.experiments import fedbio_parties
from parley.experiments.fedbio_parties import Trained, from_zero
from parley.experiments.horizontal_baselines import NestSettings, fednest
from parley.numerics.storm import Schedule, Vector
from parley.numerics.streams import stream
from parley.party.fedbio import steps as party
from parley.party.fedbio.objectives import Quadratic

PARTIES, UPPER, LOWER, SEED = 8, 4, 6, 233
STEPS = party.Settings(eta=0.1, gamma=0.2, tau=0.2, local_steps=1, radius=100.0, c_nu=0.1, c_omega=0.1, c_u=0.1)
DECAYING = Schedule(delta=2.0, offset=8.0)


def problem(seed: int = SEED) -> list[Quadratic]:
    """Eight clients whose Hessians have eigenvalues in [0.5, 2] and different directions, couplings and targets."""
    generator = stream(seed, "fedbio/quadratic")
    coupling = generator.standard_normal((LOWER, UPPER)) / np.sqrt(LOWER)
    clients = []
    for _ in range(PARTIES):
        basis, _ = np.linalg.qr(generator.standard_normal((LOWER, LOWER)))
        clients.append(
            Quadratic(
                H=basis @ np.diag(generator.uniform(0.5, 2.0, LOWER)) @ basis.T,
                B=coupling + generator.standard_normal((LOWER, UPPER)) / np.sqrt(LOWER),
                c=generator.standard_normal((1, LOWER)),
                a=2.0 * generator.standard_normal(LOWER),
                s=np.zeros(UPPER),
                ridge=0.1,
            )
        )
    return clients


@dataclass(frozen=True, slots=True)
class Solutions:
    """Where three hyper-gradients vanish."""

    global_: Vector
    """Of Eq. (1): the right x for a global lower problem."""
    naive: Vector
    """Of the average of local hyper-gradients, Eq. (3), at the global y."""
    local: Vector
    """Of Eq. (10): the right x for local lower problems."""


def solutions(clients: Sequence[Quadratic]) -> Solutions:
    """Closed forms, from dense matrices: the oracle."""

    def mean(part: Callable[[Quadratic], Vector]) -> Vector:
        average: Vector = np.mean([part(client) for client in clients], axis=0)
        return average

    H, B = mean(lambda q: q.H), mean(lambda q: q.B)
    c, a = mean(lambda q: q.c[0]), mean(lambda q: q.a)

    def direct(q: Quadratic, x: Vector, u: Vector) -> Vector:
        gradient: Vector = q.ridge * (x - q.s) + q.B.T @ u
        return gradient

    def right(x: Vector) -> Vector:
        u = _solve(H, _solve(H, B @ x + c) - a)
        return mean(lambda q: direct(q, x, u))

    def naive(x: Vector) -> Vector:
        y = _solve(H, B @ x + c)
        return mean(lambda q: direct(q, x, _solve(q.H, y - q.a)))

    def local(x: Vector) -> Vector:
        return mean(lambda q: direct(q, x, _solve(q.H, _solve(q.H, q.B @ x + q.c[0]) - q.a)))

    return Solutions(*(_zero_of_affine(gradient, B.shape[1]) for gradient in (right, naive, local)))


def train(clients: Sequence[Quadratic], settings: party.Settings, steps: int) -> Trained:
    """Run `steps` local steps from zero, with every client in every round."""
    return fedbio_parties.train(from_zero(clients), settings, steps // settings.local_steps)


def run(quick: bool, data: Path | None = None) -> list[dict[str, object]]:
    """Distances to the exact solution, one row per case; `data` is not needed."""
    del data
    clients = problem()
    exact = solutions(clients)
    long = 20000  # the decaying schedule needs its length; the constant steps have converged long before
    constant = 3000 if quick else long
    five = replace(STEPS, local_steps=5)
    small = replace(five, eta=five.eta / 4, gamma=five.gamma / 4, tau=five.tau / 4)
    cases: list[tuple[str, party.Settings, int]] = [
        ("FedBiO I=1", STEPS, constant),
        ("FedBiOAcc I=1", replace(STEPS, accelerated=True), constant),
        ("FedBiO I=5", five, constant),
        ("FedBiOAcc I=5", replace(five, accelerated=True), constant),
        ("FedBiO I=5, steps/4", small, 4 * constant if quick else constant),
        ("FedBiOAcc I=5, steps/4", replace(small, accelerated=True), 4 * constant if quick else constant),
        (
            "FedBiOAcc I=5, decaying",
            replace(five, accelerated=True, schedule=DECAYING, c_nu=1.0, c_omega=1.0, c_u=1.0),
            long,
        ),
        ("FedBiOAcc I=5, u not averaged", replace(five, accelerated=True, average_u=False), constant),
    ]
    rows = [_row("‖x*‖", float(np.linalg.norm(exact.global_)), "norm")]
    rows.append(_row("average of local hyper-gradients", _distance(exact.naive, exact.global_)))
    for case, settings, steps in cases:
        outcome = train(clients, settings, steps)
        rows.append(_row(case, _distance(_upper(outcome), exact.global_)))
        rows.append(_row(case, outcome.phases / (steps // settings.local_steps), "phases per round"))
    budget = constant // 5
    nest = NestSettings(eta=0.1, gamma=0.2, tau=0.2, neumann_rounds=10, local_steps=5)
    x, _, _ = fednest(clients, [np.zeros(UPPER)] * PARTIES, np.zeros(LOWER), nest, rounds=budget, seed=SEED)
    rows.append(_row("FedNest-style I=5, 10 Neumann rounds", _distance(x[0], exact.global_)))
    for local_steps in (1, 5):
        for accelerated in (False, True):
            settings = replace(STEPS, local_steps=local_steps, accelerated=accelerated, lower="local")
            outcome = train(clients, settings, 1000 if quick else 4000)
            case = f"{'FedBiOAcc' if accelerated else 'FedBiO'}-Local I={local_steps}"
            rows.append(_row(case, _distance(_upper(outcome), exact.local)))
    return rows


def plot(rows: list[dict[str, object]], path: Path) -> None:
    """Bars of the distances, on a logarithmic axis."""
    from matplotlib.figure import Figure

    shown = [row for row in rows if row["metric"] == "distance"]
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    axes.barh([str(row["case"]) for row in shown], [max(float(str(row["ours"])), 1e-16) for row in shown])
    axes.set_xscale("log")
    axes.invert_yaxis()
    axes.set_xlabel("distance to the exact solution")
    figure.savefig(path)


def _upper(outcome: Trained) -> Vector:
    if outcome.averages.variables is None:
        raise ValueError("the run had no rounds")
    return outcome.averages.variables[:UPPER]


def _distance(x: Vector, solution: Vector) -> float:
    return float(np.linalg.norm(x - solution))


def _row(case: str, ours: float, metric: str = "distance") -> dict[str, object]:
    return {"case": case, "metric": metric, "ours": ours, "paper": None}


def _zero_of_affine(gradient: Callable[[Vector], Vector], size: int) -> Vector:
    at_zero = gradient(np.zeros(size))
    matrix = np.stack([gradient(unit) - at_zero for unit in np.eye(size)], axis=1)
    return _solve(matrix, -at_zero)


def _solve(matrix: Vector, right_side: Vector) -> Vector:
    return np.asarray(np.linalg.solve(matrix, right_side), dtype=np.float64)
