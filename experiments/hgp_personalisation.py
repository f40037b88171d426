"""Personalised models on EMNIST over four kinds of networks (Table 2 of the HGP paper), scaled to two cores.

HGP-PL: a mask over classes per party on one shared model. HGP-MTL: a party's own mixture of three shared models.
Baselines: `Local` (no communication) and `SGP` (one shared model; FedAvg on the fully connected network).

differs from the paper: images pooled to 14×14 and a one-hidden-layer network instead of a CNN with 2.2 M parameters;
rows from the test part of EMNIST ByClass, split here; sparser random networks (about six neighbours, where the paper
has about sixty of a hundred). So compare methods with each other, not with the paper's figures. Heterogeneity is the
paper's: Dirichlet(0.4) over parties for each label, and three clusters of parties with their own input scale.

Every party's rows are split 60/20/20 into training, validation and test. The outer step that is reported has the
best mean validation accuracy, as in the paper; the outer cost is the training loss.
"""

import lzma
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from parley.experiments.hgp_parties import Given, Mixing, walk, whole
from parley.numerics.bilevel_costs import BilevelCost, Predictor, class_mask, mixture
from parley.numerics.networks import NetworkKind, NetworkPlan
from parley.numerics.optimisers import ConstantStep
from parley.numerics.push_sum import estimate
from parley.numerics.streams import stream
from parley.party.hgp.role import State
from parley.party.hgp.steps import Form, Hgp, Training, begin_training, train_step
from parley.protocols.decentralised.messages import Phase, StepRange

Row = dict[str, Any]
Matrix = NDArray[np.float32]
Labels = NDArray[np.int64]

CLASSES = 62
PIXELS = 196
HIDDEN = 64
MODEL_SIZE = PIXELS * HIDDEN + HIDDEN + HIDDEN * CLASSES + CLASSES
COMPONENTS = 3
WEIGHT_DECAY = 0.001
LOCAL_RATE, SHARED_RATE, MIXTURE_RATE = 0.1, 0.3, 1.0
"""Chosen by validation accuracy on RandD at the quick scale: from 0.1, 0.3 and 0.6, the mixture's from 0.5 and 1."""
PAPER = {
    ("Local", "FC"): (0.747, 0.630), ("Local", "FixU"): (0.747, 0.630),
    ("Local", "RandU"): (0.734, 0.640), ("Local", "RandD"): (0.734, 0.640),
    ("SGP", "FC"): (0.829, 0.745), ("SGP", "FixU"): (0.838, 0.768),
    ("SGP", "RandU"): (0.800, 0.718), ("SGP", "RandD"): (0.801, 0.724),
    ("HGP-MTL", "FC"): (0.840, 0.761), ("HGP-MTL", "FixU"): (0.840, 0.763),
    ("HGP-MTL", "RandU"): (0.826, 0.743), ("HGP-MTL", "RandD"): (0.818, 0.729),
    ("HGP-PL", "FC"): (0.881, 0.826), ("HGP-PL", "FixU"): (0.880, 0.822),
    ("HGP-PL", "RandU"): (0.855, 0.796), ("HGP-PL", "RandD"): (0.856, 0.796),
}  # fmt: skip


METHODS = ("Local", "SGP", "HGP-MTL", "HGP-PL")


class MissingData(FileNotFoundError):
    """The experiment's data set is not where it was said to be."""


class UnknownMethod(ValueError):
    """A method that the experiment does not have."""


@dataclass(frozen=True)
class Part:
    """Rows of one party for one purpose."""

    features: Matrix
    labels: Labels


@dataclass(frozen=True)
class Party:
    """One party's rows."""

    training: Part
    validation: Part
    test: Part


@dataclass(frozen=True)
class Scale:
    """How large a run is."""

    parties: int
    rows: int
    train_steps: int
    outer_steps: int
    networks: tuple[str, ...]


QUICK = Scale(parties=12, rows=7_000, train_steps=150, outer_steps=3, networks=("FixU", "RandD"))
FULL = Scale(parties=100, rows=60_000, train_steps=300, outer_steps=5, networks=("RandD", "FixU"))


def load_emnist(data: Path) -> tuple[NDArray[np.uint8], Labels]:
    """Return images and labels of the test part of EMNIST ByClass, stored as .npy.xz."""
    folder = data / "emnist"
    names = ("emnist_byclass_test_images_u8.npy.xz", "emnist_byclass_test_labels_u8.npy.xz")
    for name in names:
        if not (folder / name).is_file():
            raise MissingData(f"{folder / name} is missing: give the folder that holds emnist/ with --data.")
    arrays = []
    for name in names:
        with lzma.open(folder / name) as stored:
            arrays.append(np.load(stored))
    return arrays[0], arrays[1].astype(np.int64)


def split_parties(images: NDArray[np.uint8], labels: Labels, scale: Scale, seed: int) -> list[Party]:
    """Deal rows to parties: Dirichlet(0.4) for each label, and three clusters with their own mean and scale."""
    draw = stream(seed, "emnist.split")
    chosen = draw.choice(len(labels), size=scale.rows, replace=False)
    pooled = images[chosen].reshape(-1, 14, 2, 14, 2).mean(axis=(2, 4), dtype=np.float32).reshape(-1, PIXELS)
    pooled, targets = pooled / 255.0, labels[chosen]
    owner = np.empty(scale.rows, dtype=np.int64)
    for label in range(CLASSES):
        rows = np.flatnonzero(targets == label)
        owner[rows] = draw.choice(scale.parties, size=len(rows), p=draw.dirichlet(np.full(scale.parties, 0.4)))
    shifts = draw.uniform(0.0, 1.0, size=(3, 2))
    parties = []
    for i in range(scale.parties):
        rows = draw.permutation(np.flatnonzero(owner == i))
        mean, variance = shifts[i % 3]
        features = ((pooled[rows] - mean) / np.sqrt(0.25 + variance)).astype(np.float32)
        cut = np.cumsum([int(0.6 * len(rows)), int(0.2 * len(rows))])
        pieces = zip(np.split(features, cut), np.split(targets[rows], cut), strict=True)
        parties.append(Party(*(Part(*piece) for piece in pieces)))
    return parties


def network(x: Tensor, inputs: Tensor) -> Tensor:
    """One hidden layer; `x` holds its weights and biases one after the other."""
    w1, b1, w2, b2 = torch.split(x, [PIXELS * HIDDEN, HIDDEN, HIDDEN * CLASSES, CLASSES])
    hidden = torch.relu(inputs @ w1.reshape(PIXELS, HIDDEN) + b1)
    return hidden @ w2.reshape(HIDDEN, CLASSES) + b2


def initial_model(seed: int) -> Matrix:
    """Return a common starting point with He-scaled weights."""
    draw = stream(seed, "emnist.start")
    w1 = draw.standard_normal(PIXELS * HIDDEN) * np.sqrt(2.0 / PIXELS)
    w2 = draw.standard_normal(HIDDEN * CLASSES) * np.sqrt(1.0 / HIDDEN)
    return np.concatenate([w1, np.zeros(HIDDEN), w2, np.zeros(CLASSES)]).astype(np.float32)


def mixing_of(name: str, parties: int, seed: int) -> Mixing:
    """Return FC, FixU (Erdős–Rényi with Metropolis weights), RandU or RandD, with about six neighbours each."""
    sparse = (min(1.0, 4.0 / parties), min(1.0, 8.0 / parties))
    kinds = {
        "FC": NetworkKind.FULLY_CONNECTED,
        "FixU": NetworkKind.ERDOS_RENYI,
        "RandU": NetworkKind.RANDOM_UNDIRECTED,
        "RandD": NetworkKind.RANDOM_DIRECTED,
    }
    plan = NetworkPlan(kinds[name], parties, seed=seed, probability=sparse)
    return Mixing(plan, doubly_stochastic=name == "FixU")


@dataclass(frozen=True)
class Accuracy:
    """Over parties: the mean, weighted by rows, and the tenth percentile."""

    mean: float
    bottom_decile: float


def accuracy(predict: Predictor, parts: Sequence[Part], models: Sequence[Matrix], hypers: Sequence[Matrix]) -> Accuracy:
    """Judge each party's own model on its own rows."""
    shares, rows = [], []
    for part, x, hyper in zip(parts, models, hypers, strict=True):
        if len(part.labels) == 0:
            continue
        with torch.no_grad():
            joined = torch.cat([torch.as_tensor(x), torch.as_tensor(hyper)])
            guess = predict(joined, torch.as_tensor(part.features)).argmax(dim=1).numpy()
        shares.append(float((guess == part.labels).mean()))
        rows.append(len(part.labels))
    return Accuracy(float(np.average(shares, weights=rows)), float(np.quantile(shares, 0.1)))


def masked(joined: Tensor, inputs: Tensor) -> Tensor:
    """HGP-PL's prediction; λ = 0 is the plain shared model."""
    return network(joined[:MODEL_SIZE], inputs) * torch.softmax(joined[MODEL_SIZE:], dim=0)


def mixed(joined: Tensor, inputs: Tensor) -> Tensor:
    """HGP-MTL's prediction."""
    parts = joined[: COMPONENTS * MODEL_SIZE].reshape(COMPONENTS, MODEL_SIZE)
    weights = torch.softmax(joined[COMPONENTS * MODEL_SIZE :], dim=0)
    return sum(
        (w * torch.softmax(network(p, inputs), dim=1) for w, p in zip(weights, parts, strict=True)),
        torch.zeros(()),
    )


@dataclass(frozen=True)
class Alternating:
    """Training and hyper-gradient of every outer step, far apart in the network's schedule."""

    scale: Scale
    learning_rate: float

    def training(self, k: int) -> Training:
        """As many steps in each outer step, with batches of its own."""
        steps = self.scale.train_steps
        return Training(steps, self.learning_rate, (steps * 5 // 6, steps * 11 // 12), batch_size=128, seed=1000 + k)

    def hyper_gradient(self, k: int) -> Hgp:  # noqa: ARG002 (the same each time)
        """Ten rounds of ten steps."""
        return Hgp(rounds=10, push_steps=10, step_size=0.1, form=Form.TRACK)

    def first_step(self, k: int, phase: Phase) -> int:
        """Where a phase begins."""
        return 10_000 * k + (5_000 if phase == "hyper_gradient" else 0)


def personalise(
    parties: list[Party],
    costs: list[BilevelCost],
    predict: Predictor,
    mixing: Mixing,
    start: Matrix,
    scale: Scale,
    *,
    learning_rate: float,
    hyper_rate: float,
) -> list[tuple[Accuracy, Accuracy]]:
    """Alternate SGP and a step of Adam on λ; return (validation, test) accuracy before each outer step and after."""
    schedule = Alternating(scale, learning_rate)
    adam = ConstantStep("adam", hyper_rate)
    tasks = [Given(cost, start, np.zeros(cost.hyper_size, np.float32), adam) for cost in costs]
    outer_steps = range(scale.outer_steps)
    stretches = [whole("train", schedule.training(0), 0)]
    for k in outer_steps:
        if hyper_rate:
            stretches.append(whole("hyper_gradient", schedule.hyper_gradient(k), k))
        stretches.append(whole("train", schedule.training(k + 1), k + 1))
    history = []

    def judge(stretch: StepRange, states: Sequence[State]) -> None:
        if stretch.phase == "train":
            models, hypers = [state.x for state in states], [state.hyper for state in states]
            validation, test = [p.validation for p in parties], [p.test for p in parties]
            history.append((accuracy(predict, validation, models, hypers), accuracy(predict, test, models, hypers)))

    walk(tasks, mixing, schedule, stretches, judge)
    return history


def train_alone(costs: list[BilevelCost], start: Matrix, scale: Scale) -> list[Matrix]:
    """The `Local` baseline: as many steps as the others take in total, on the party's own rows alone."""
    hyper = np.zeros(CLASSES, dtype=np.float32)
    steps = scale.train_steps * (scale.outer_steps + 1)
    settings = Training(steps, LOCAL_RATE, (steps * 5 // 6, steps * 11 // 12), batch_size=128)
    models = []
    for member, cost in enumerate(costs):
        state = begin_training(start)
        for _ in range(steps):
            state, _ = train_step(cost, settings, hyper, member, state, {}, ())
        models.append(estimate(state.mass).astype(np.float32))
    return models


def measure(method: str, network_name: str, parties: list[Party], scale: Scale, seed: int = 0) -> Accuracy:
    """Train by one of `METHODS` and return the test accuracy of the outer step that is best on validation rows."""
    if method not in METHODS:
        raise UnknownMethod(f"There is no method {method!r}: choose one of {', '.join(METHODS)}.")
    costs, predict, start = _mixtures(parties) if method == "HGP-MTL" else _masks(parties)
    if method == "Local":
        nothing = [np.zeros(CLASSES, dtype=np.float32)] * len(parties)
        return accuracy(predict, [p.test for p in parties], train_alone(costs, start, scale), nothing)
    # The shared model gets as many training steps as the personalised ones: the same run with λ held at 0.
    rate, hyper_rate = (MIXTURE_RATE if method == "HGP-MTL" else SHARED_RATE), (0.0 if method == "SGP" else 0.1)
    mixing = mixing_of(network_name, scale.parties, seed=seed)
    history = personalise(parties, costs, predict, mixing, start, scale, learning_rate=rate, hyper_rate=hyper_rate)
    return max(history, key=lambda each: each[0].mean)[1]


def run(quick: bool, data: Path | None, seed: int = 0) -> list[Row]:
    """Return mean and bottom-decile accuracy for each method and network."""
    if data is None:
        raise MissingData("hgp-personalisation needs EMNIST: give the folder that holds emnist/ with --data.")
    scale = QUICK if quick else FULL
    return table(split_parties(*load_emnist(data), scale, seed=seed), scale, seed)


def table(parties: list[Party], scale: Scale, seed: int = 0) -> list[Row]:
    """Every method on every network of the scale."""
    local = measure("Local", scale.networks[0], parties, scale)  # the same on every network
    return [
        row
        for name in scale.networks
        for method in METHODS
        for row in _rows(method, name, local if method == "Local" else measure(method, name, parties, scale, seed))
    ]


def _masks(parties: Sequence[Party]) -> tuple[list[BilevelCost], Predictor, Matrix]:
    costs = [
        class_mask(
            network, MODEL_SIZE, p.training.features, p.training.labels,
            classes=CLASSES, weight_decay=WEIGHT_DECAY, hyper_decay=0.001,
        )
        for p in parties
    ]  # fmt: skip
    return costs, masked, initial_model(0)


def _mixtures(parties: Sequence[Party]) -> tuple[list[BilevelCost], Predictor, Matrix]:
    costs = [
        mixture(
            network, MODEL_SIZE, p.training.features, p.training.labels,
            components=COMPONENTS, weight_decay=WEIGHT_DECAY, hyper_decay=0.01,
        )
        for p in parties
    ]  # fmt: skip
    return costs, mixed, np.concatenate([initial_model(seed) for seed in range(COMPONENTS)])


def _rows(method: str, network_name: str, test: Accuracy) -> list[Row]:
    mean, decile = PAPER[method, network_name]
    case = f"{method}, {network_name}"
    return [
        {"case": case, "metric": "mean accuracy", "ours": test.mean, "paper": mean},
        {"case": case, "metric": "bottom-decile accuracy", "ours": test.bottom_decile, "paper": decile},
    ]


def plot(rows: list[Row], path: Path) -> None:
    """Draw the accuracies as grouped bars, one group for each network."""
    from matplotlib.figure import Figure

    means = {row["case"]: row["ours"] for row in rows if row["metric"] == "mean accuracy"}
    figure = Figure(figsize=(8, 0.35 * len(means) + 1.5), layout="constrained")
    axes = figure.subplots()
    axes.barh(list(means), list(means.values()), color="#4c78a8", label="mean")
    deciles = {row["case"]: row["ours"] for row in rows if row["metric"] == "bottom-decile accuracy"}
    axes.plot(list(deciles.values()), list(deciles), "k|", markersize=12, label="bottom decile")
    axes.set_xlabel("test accuracy")
    axes.invert_yaxis()
    axes.legend(loc="lower left")
    figure.savefig(path)
