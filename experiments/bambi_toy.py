"""bambi-toy: how close each hyper-gradient of BAMBI comes to dense implicit differentiation, and what it is worth.

BAMBI (the paper), Eq. 5 and Algorithm 1. The tasks are small enough for a dense Hessian of the pooled problem, by torch
autograd, and their features are correlated across parties: on independent ones the paper's local estimator passes too.

    ridge          VFHO, squared loss, a regularisation coefficient for each of 20 features at four parties, ρ = 0.8
    breast cancer  VFHO, logistic loss, scikit-learn's 30 features at three parties
    tanh softmax   VFHRL, a tanh embedding at each of four parties, softmax

`relative error` and `cosine` are those of one hyper-gradient. `zeroth_order` averages 200·p Gaussian directions (with p
orthogonal ones it is exact). `share of attainable decrease`: training on ridge, how much of the decrease in upper loss
that descent along the exact hyper-gradient attains in as many steps.

    parley reproduce bambi-toy [--quick] [--json FILE] [--plot FILE]
"""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer
from torch import Tensor

from parley.local import LocalFederation
from parley.numerics.optimisers import schedule
from parley.numerics.streams import stream
from parley.party.bambi.role import BambiRole
from parley.party.bambi.steps import Block, State
from parley.protocols.bambi.settings import BambiSpec
from parley.services.party.checkpoints import Store
from parley.simulation import Holding, Simulation, simulation_of
from parley.spec.rows import RowSets
from parley.spec.run import RunSpec
from parley.tables.loading import Labels, Table

Array = NDArray[Any]
Row = dict[str, Any]

MODES = ("implicit", "zeroth_order", "zeroth_order_local")
CORRELATION, NOISE = 0.8, 1.0
SEED = 3
LIMIT = 256.0
"""Largest magnitude in a sum."""


@dataclass(frozen=True)
class Toy:
    """A task: who holds which columns, and how both levels are set."""

    features: Sequence[Array]
    labels: Array
    rows: RowSets
    settings: Mapping[str, Any]

    def federation(self, mode: str, **changes: Mapping[str, Any]) -> "Federation":
        """The task under one hyper-gradient, in one process."""
        spec = spec_of(self, mode, **changes)
        ids = np.array([f"{row:05d}" for row in range(len(self.labels))])
        tables = [
            Table(ids, features, [str(column) for column in range(features.shape[1])], name)
            for name, features in zip(self.names, self.features, strict=True)
        ]
        names = () if self.settings["loss"] == "squared" else tuple(str(each) for each in np.unique(self.labels))
        labels = Labels(ids, self.labels, names)
        return Federation(simulation_of(spec, [Holding(table) for table in tables], lambda _, __: labels))

    @property
    def names(self) -> list[str]:
        """The parties."""
        return [f"party-{m}" for m in range(len(self.features))]


@dataclass(frozen=True)
class Federation:
    """BAMBI's roles in one process."""

    simulation: Simulation

    @property
    def blocks(self) -> list[Block]:
        """What each party works on."""
        return [role.block for role in self.simulation.roles if isinstance(role, BambiRole)]

    def start(self) -> list[State]:
        """Every party before the first round."""
        return self.simulation.begin()

    def train(self) -> list[State]:
        """Every party after the last round."""
        return self.simulation.run().states


def correlated_ridge(parties: int = 4, columns: int = 5, rows: int = 120) -> Toy:
    """Every column of a party has a counterpart at each other party, with correlation ρ."""
    rng = stream(SEED, "toy/ridge")
    shared = rng.standard_normal((rows, columns))
    own = rng.standard_normal((parties, rows, columns))
    features = CORRELATION**0.5 * shared + (1 - CORRELATION) ** 0.5 * own
    # Half of the columns matter: a coefficient of its own for each feature is what VFHO can learn.
    weights = rng.standard_normal((parties, columns)) * (rng.random((parties, columns)) < 0.5)
    labels = np.einsum("mrc,mc->r", features, weights) + NOISE * rng.standard_normal(rows)
    half = rows // 2
    settings = {
        "problem": "hyper_parameters",
        "coefficients": "feature",
        "loss": "squared",
        "regularisation": 0.03,
        "lower": {"steps": 250, "optimiser": {"step": 0.4}},
    }
    sets = RowSets(np.arange(half), np.arange(half, rows), np.arange(0))
    return Toy([_as_stored(block) for block in features], labels, sets, settings)


def breast_cancer(parties: int = 3) -> Toy:
    """All 569 rows, z-scored; columns in three equal blocks."""
    loaded = load_breast_cancer()
    scaled = (loaded.data - loaded.data.mean(axis=0)) / loaded.data.std(axis=0)
    order = stream(SEED, "toy/breast").permutation(len(scaled))
    settings = {
        "problem": "hyper_parameters",
        "coefficients": "feature",
        "loss": "logistic",
        "regularisation": 0.05,
        "lower": {"steps": 200, "optimiser": {"step": 0.4}},
    }
    rows = RowSets(np.arange(200), np.arange(200, 569), np.arange(0))
    return Toy(np.split(scaled[order], parties, axis=1), loaded.target[order], rows, settings)


def tanh_softmax(parties: int = 4, columns: int = 3, rows: int = 90, classes: int = 3) -> Toy:
    """Section 5's hyper-representation in small: one hidden tanh layer at each party."""
    rng = stream(SEED, "toy/tanh")
    shared = rng.standard_normal((rows, columns))
    features = CORRELATION**0.5 * shared + (1 - CORRELATION) ** 0.5 * rng.standard_normal((parties, rows, columns))
    scores = features.sum(axis=0) @ rng.standard_normal((columns, classes)) + rng.standard_normal((rows, classes))
    settings = {
        "problem": "hyper_representation",
        "model": {"kind": "mlp", "hidden": [2], "out": 2, "activation": "tanh"},
        "loss": "softmax",
        "regularisation": 0.05,
        "lower": {"steps": 150, "optimiser": {"step": 0.5}},
    }
    half = rows // 2
    sets = RowSets(np.arange(half), np.arange(half, rows), np.arange(0))
    return Toy(list(features), scores.argmax(axis=1), sets, settings)


def _as_stored(features: Array) -> Array:
    """Features as a table keeps them, in single precision, so that processes see the same numbers."""
    return features.astype(np.float32).astype(np.float64)


def settings_of(toy: Toy, mode: str, **changes: Mapping[str, Any]) -> BambiSpec:
    """Full batches and one plain upper step of length 1, so that the step taken is the hyper-gradient."""
    merged: dict[str, Any] = {
        "algorithm": "bambi",
        "hypergradient": mode,
        **toy.settings,
        "intercept": False,
        "upper": {"steps": 1, "batch": None, "optimiser": {"step": 1.0}},
        "zeroth_order": {"kind": "gaussian", "smoothing": 1e-5, "jacobian_clip": None},
        "implicit": {"rounds": 20, "newton_rounds": 40, "tolerance": 1e-14},
    }
    if mode == "implicit":
        merged["lower"] = {"solver": "newton", "steps": 12, "batch": None}
    else:
        merged["lower"] = {"solver": "sgd", "batch": None, **merged["lower"]}
    for section, fields in changes.items():
        merged[section] = {**merged[section], **fields}
    return BambiSpec.model_validate(merged)


def spec_of(toy: Toy, mode: str, **changes: Mapping[str, Any]) -> RunSpec:
    """The run, with exact labels."""
    lower, upper = toy.rows.lower, toy.rows.upper
    content = {
        "name": "toy",
        "seed": SEED,
        "dtype": "float64",
        "parties": toy.names,
        "split": {"lower": f"0:{len(lower)}", "upper": f"{upper[0]}:{upper[-1] + 1}", "test": 0},
        "train": settings_of(toy, mode, **changes),
        # r·z is known to the ring's last digit, so a residual to 2^(−f/2).
        "privacy": {"labels": {"mechanism": "off"}, "aggregation": {"fraction_bits": 50, "limit": LIMIT}},
        "evaluate_every": 0,
        "checkpoint_every": 0,
    }
    return RunSpec.model_validate(content)


class Dense:
    """The pooled problem with a dense Hessian; shares nothing with the roles but the networks."""

    def __init__(self, toy: Toy, blocks: Sequence[Block]) -> None:
        self._settings = blocks[0].settings
        self._rows = toy.rows
        self._features = [torch.from_numpy(block.features) for block in blocks]
        self._embeds = [block.model.apply if block.has_direct_term else None for block in blocks]
        self._upper_sizes = list(blocks[0].upper_sizes)
        self._widths = [block.model.out for block in blocks]
        self._outputs = blocks[0].outputs
        self._labels = torch.from_numpy(np.asarray(toy.labels))

    def hypergradient(self, x: Tensor) -> Tensor:
        """∇_x f − ∂²g/∂x∂y (∂²g/∂y²)⁻¹ ∇_y f at the lower solution."""
        y = self.solution(x)
        leaf_x, leaf_y = x.clone().requires_grad_(), y.clone().requires_grad_()
        upper = self._data_loss(leaf_x, leaf_y, self._rows.upper)
        direct, weight = torch.autograd.grad(upper, [leaf_x, leaf_y], allow_unused=True, materialize_grads=True)
        adjoint = torch.linalg.solve(self._hessian(x, y), weight)
        (gradient,) = torch.autograd.grad(self._lower(leaf_x, leaf_y), leaf_y, create_graph=True)
        (cross,) = torch.autograd.grad(gradient @ adjoint, leaf_x)
        return direct - cross

    def solution(self, x: Tensor) -> Tensor:
        """y*(x) by Newton steps, shortened where they overshoot."""
        y = torch.zeros(self._outputs * sum(self._widths), dtype=x.dtype)
        for _ in range(60):
            leaf = y.clone().requires_grad_()
            (gradient,) = torch.autograd.grad(self._lower(x, leaf), leaf)
            step = torch.linalg.solve(self._hessian(x, y), gradient)
            length = 1.0
            while self._lower(x, y - length * step) > self._lower(x, y) and length > 1e-6:
                length /= 2
            y = y - length * step
            if step.norm() < 1e-12 * (1 + y.norm()):
                break
        return y

    def upper_loss(self, x: Tensor) -> float:
        """f(x, y*(x))."""
        return float(self._data_loss(x, self.solution(x), self._rows.upper))

    def _hessian(self, x: Tensor, y: Tensor) -> Tensor:
        dense: Tensor = torch.func.hessian(self._lower, argnums=1)(x, y)
        return dense

    def _lower(self, x: Tensor, y: Tensor) -> Tensor:
        if self._embeds[0] is not None:
            penalty = self._settings.regularisation * y.square().sum()
        else:
            penalty = (torch.exp(x) * y.square()).sum()
        return self._data_loss(x, y, self._rows.lower) + penalty

    def _data_loss(self, x: Tensor, y: Tensor, rows: Array) -> Tensor:
        h = torch.zeros((len(rows), self._outputs), dtype=x.dtype)
        weights = torch.split(y, [width * self._outputs for width in self._widths])
        blocks = torch.split(x, self._upper_sizes)
        for a, embed, x_m, y_m in zip(self._features, self._embeds, blocks, weights, strict=True):
            s = a[rows] if embed is None else embed(x_m, a[rows])
            h = h + s @ y_m.reshape(-1, self._outputs)
        target = self._labels[rows]
        if self._settings.loss == "softmax":
            return torch.nn.functional.cross_entropy(h, target)
        if self._settings.loss == "logistic":
            return torch.nn.functional.binary_cross_entropy_with_logits(h[:, 0], target.to(h.dtype))
        return 0.5 * (h[:, 0] - target).square().mean()


@dataclass(frozen=True)
class Closeness:
    """One hyper-gradient against the exact one."""

    relative_error: float
    cosine: float


def closeness(toy: Toy, mode: str, **changes: Mapping[str, Any]) -> Closeness:
    """One upper step by the roles, against the dense hyper-gradient at the same point."""
    federation = toy.federation(mode, **changes)
    before, after = federation.start(), federation.train()
    ours = torch.cat([b.x - a.x for b, a in zip(before, after, strict=True)])
    return compared(ours, Dense(toy, federation.blocks).hypergradient(torch.cat([state.x for state in before])))


def compared(ours: Tensor, exact: Tensor) -> Closeness:
    """Relative error and cosine."""
    return Closeness(float((ours - exact).norm() / exact.norm()), float(ours @ exact / ours.norm() / exact.norm()))


def directions_of(toy: Toy, per_parameter: int) -> dict[str, int]:
    """So many directions for each upper parameter."""
    federation = toy.federation("implicit")
    return {"directions": per_parameter * sum(federation.blocks[0].upper_sizes)}


def share_of_decrease(toy: Toy, mode: str, steps: int, step: float, **changes: Mapping[str, Any]) -> float:
    """(f₀ − f_mode)/(f₀ − f_exact) after as many upper steps of the same length; f at the exact lower solution."""
    upper = {"steps": steps, "optimiser": {"step": step, "decay_from": 0.5}}
    federation = toy.federation(mode, upper=upper, **changes)
    dense = Dense(toy, federation.blocks)
    before = torch.cat([state.x for state in federation.start()])
    exact = before
    for k in range(1, steps + 1):
        exact = exact - schedule(step, 0.5, k, steps) * dense.hypergradient(exact)
    after = torch.cat([state.x for state in federation.train()])
    start = dense.upper_loss(before)
    return (start - dense.upper_loss(after)) / (start - dense.upper_loss(exact))


def over_grpc(toy: Toy, mode: str, directory: Path) -> Closeness:
    """The same upper step between real processes: mutual TLS, pairwise masks, one file per organisation."""
    federation, names = toy.federation(mode), toy.names
    for name, features in zip(names, toy.features, strict=True):
        columns = np.array([f"{name}-{index}" for index in range(features.shape[1])])
        np.savez(directory / f"{name}.npz", x=features, ids=np.arange(len(features)), columns=columns)
    np.savez(directory / "labels.npz", label=toy.labels, ids=np.arange(len(toy.labels)))
    text = yaml.safe_dump(spec_of(toy, mode).model_dump(mode="json", exclude_none=True))
    tables = {name: {"train": {"path": directory / f"{name}.npz"}} for name in names}
    labels = {"train": {"path": directory / "labels.npz"}}
    services = LocalFederation(directory, tables, labels, policy={"aggregation": {"limit": LIMIT}})
    with services, services.connect() as client:
        run = client.start(text)
        run.result()
        models = [Store(directory / "state" / name).load_model(run.run_id) for name in names]
    before = torch.cat([state.x for state in federation.start()])
    after = torch.cat([model["coefficients"] for model in models])
    return compared(before - after, Dense(toy, federation.blocks).hypergradient(before))


PROBLEMS = {"ridge": correlated_ridge, "breast cancer": breast_cancer, "tanh softmax": tanh_softmax}


def run(quick: bool, data: Path | None = None) -> list[Row]:  # noqa: ARG001 (the data are made here)
    """Closeness for each mode and problem, shares of the decrease on ridge, and one hyper-gradient over gRPC.

    `quick` trains 30 upper steps on ridge in place of 60.
    """
    rows: list[Row] = []
    for name, make in PROBLEMS.items():
        toy = make()
        for rounds in (5, 8, 10, 20):
            found = closeness(toy, "implicit", implicit={"rounds": rounds})
            rows.append(_row(f"implicit, {name}", f"relative error after {rounds} rounds", found.relative_error))
        rows += _closeness_rows(f"implicit, {name}", found)
        for mode in MODES[1:]:
            averaged = closeness(toy, mode, zeroth_order=directions_of(toy, 200))
            rows += _closeness_rows(f"{mode}, {name}", averaged)
            orthogonal = closeness(toy, mode, zeroth_order=directions_of(toy, 1) | {"kind": "orthogonal"})
            rows += _closeness_rows(f"{mode}, {name}", orthogonal, " (p orthogonal directions)")
    ridge = correlated_ridge()
    for mode in MODES:
        share = share_of_decrease(ridge, mode, 30 if quick else 60, 5.0, **training_of(ridge, mode))
        rows.append(_row(f"{mode}, ridge", "share of attainable decrease", share))
    with tempfile.TemporaryDirectory() as directory:
        rows += _closeness_rows("implicit, ridge over gRPC", over_grpc(ridge, "implicit", Path(directory)))
    return rows


def training_of(toy: Toy, mode: str) -> dict[str, dict[str, Any]]:
    """How a mode is trained: implicit with one Newton step, zeroth order with p orthogonal directions."""
    if mode == "implicit":
        return {"lower": {"steps": 1}, "implicit": {"rounds": 8, "newton_rounds": 8}}
    return {"zeroth_order": directions_of(toy, 1) | {"kind": "orthogonal"}}


def plot(rows: list[Row], path: Path) -> None:
    """Relative error of `implicit` by conjugate-gradient rounds, and the share of the decrease by mode."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for name in PROBLEMS:
        errors = {
            int(row["metric"].split()[-2]): row["ours"]
            for row in rows
            if row["case"] == f"implicit, {name}" and row["metric"].startswith("relative error after")
        }
        left.semilogy(list(errors), list(errors.values()), marker="o", label=name)
    left.set_xlabel("conjugate-gradient rounds")
    left.set_ylabel("relative error of the implicit hyper-gradient")
    left.legend()
    shares = {row["case"].split(",")[0]: row["ours"] for row in rows if row["metric"].startswith("share")}
    right.bar(list(shares), list(shares.values()))
    right.set_ylabel("share of the attainable decrease, correlated ridge")
    figure.savefig(path)


def _closeness_rows(case: str, found: Closeness, note: str = "") -> list[Row]:
    return [_row(case, f"relative error{note}", found.relative_error), _row(case, f"cosine{note}", found.cosine)]


def _row(case: str, metric: str, ours: float) -> Row:
    return {"case": case, "metric": metric, "ours": ours, "paper": None}
