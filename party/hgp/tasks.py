"""What a run of HGP learns at a party: the costs from the party's own rows, and what it leaves there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from parley.numerics.bilevel_costs import (
    BilevelCost,
    Personal,
    Predictor,
    class_mask,
    dense_network,
    masked_logits,
    mixed_logits,
    mixture,
    regularised_logistic,
    weighted_samples,
)
from parley.numerics.metrics import party_addends
from parley.numerics.optimisers import ConstantStep, Moments
from parley.numerics.streams import stream
from parley.party.fedbio.objectives import initial_network
from parley.party.hgp.influence import picture, ranked_rows
from parley.party.hgp.steps import outer_step
from parley.party.roles import Opened
from parley.protocols.decentralised.messages import ACCURACY_LEVELS
from parley.protocols.hgp.settings import HgpSpec, InfluenceSpec, PersonalisationSpec, RegularisationSpec
from parley.protocols.rounds import MEASURE_UNIT
from parley.spec.rows import RowSets, divide
from parley.spec.run import RunSpec

Vector = NDArray[np.floating]
RANKED, PICTURE = "influence.csv", "influence.png"


@dataclass(frozen=True)
class Part:
    """Some rows of the party."""

    features: Vector
    labels: NDArray[np.int64]


class Task(Protocol):
    """A party's costs, where it starts, and what is done with its hyper-gradient."""

    @property
    def cost(self) -> BilevelCost:
        """f_i and g_i."""

    @property
    def x(self) -> Vector:
        """The first model, the same at all parties."""

    @property
    def hyper(self) -> Vector:
        """The first λ_i."""

    def next_hyper(self, hyper: Vector, v: Vector, moments: Moments[Vector]) -> tuple[Vector, Moments[Vector]]:
        """λ_i after an outer iteration with hyper-gradient v_i."""

    def measures(self, x: Vector, hyper: Vector, v: Vector | None) -> NDArray[np.float64]:
        """Addends of what the parties measure together."""

    def findings(self, v: Vector | None) -> Mapping[str, bytes]:
        """Files for the party's owner."""


@dataclass(frozen=True)
class HgpTask:
    """A party's costs, where it starts, and how its model scores rows."""

    cost: BilevelCost
    x: Vector
    """The first model, the same at all parties."""
    hyper: Vector
    """The first λ_i."""
    optimiser: ConstantStep
    """Of the steps on λ_i."""
    lowest: float
    """No λ falls below this."""
    scores: Personal
    validation: Part
    test: Part
    training: Part
    ids: NDArray[np.str_]
    """Of the training rows."""
    classes: tuple[str, ...]
    ranks_rows: bool = False
    """Whether v is the influence of the party's own rows."""
    counts_accuracy: bool = False
    """Whether the spread of accuracies over parties is measured."""
    averages: bool = False
    """Whether figures of the party's own rows are summed with its measures."""

    def next_hyper(self, hyper: Vector, v: Vector, moments: Moments[Vector]) -> tuple[Vector, Moments[Vector]]:
        """One step on λ_i, or none where v is the result."""
        return (hyper, moments) if self.ranks_rows else outer_step(hyper, v, moments, self.optimiser, self.lowest)

    def measures(self, x: Vector, hyper: Vector, v: Vector | None) -> NDArray[np.float64]:
        """Addends: loss, mistakes and rows of validation and of test, own test accuracy, ‖v‖²; a one at its level."""
        accuracy, parts = 0.0, []
        for part in (self.validation, self.test):
            loss, mistakes = self._judge(part, x, hyper)
            rows = len(part.labels)
            parts += [loss / MEASURE_UNIT, mistakes / MEASURE_UNIT, rows / MEASURE_UNIT]
            accuracy = 1.0 - mistakes / rows if rows else 0.0
        squared = 0.0 if v is None else float(np.sum(np.square(v, dtype=np.float64)))
        levels = np.zeros(ACCURACY_LEVELS + 1 if self.counts_accuracy else 0)
        if len(levels) and len(self.test.labels):
            levels[round(ACCURACY_LEVELS * accuracy)] = 1.0
        judged = [party_addends(*self._probabilities(x, hyper))] if self.averages else []
        return np.concatenate([np.array([*parts, accuracy, squared]), levels, *judged])

    def _probabilities(self, x: Vector, hyper: Vector) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Of the test rows, or of the validation rows where there are none."""
        part = self.test if len(self.test.labels) else self.validation
        with torch.no_grad():
            scores = self.scores(torch.as_tensor(x), torch.as_tensor(hyper), torch.as_tensor(part.features))
        return scores.double().softmax(dim=1).numpy(), part.labels

    def findings(self, v: Vector | None) -> Mapping[str, bytes]:
        """Files for the party's owner."""
        if not self.ranks_rows or v is None:
            return {}
        return {
            RANKED: ranked_rows(self.ids.tolist(), v, self.training.labels, self.classes),
            PICTURE: picture(v),
        }

    def _judge(self, part: Part, x: Vector, hyper: Vector) -> tuple[float, float]:
        if not len(part.labels):
            return 0.0, 0.0
        labels = torch.as_tensor(part.labels)
        with torch.no_grad():
            scores = self.scores(torch.as_tensor(x), torch.as_tensor(hyper), torch.as_tensor(part.features))
            loss = functional.cross_entropy(scores, labels, reduction="sum")
        return float(loss), float((scores.argmax(dim=1) != labels).sum())


def row_sets(spec: RunSpec, index: int, rows: int) -> RowSets:
    """A party's own split."""
    return divide(spec.split, rows, stream(spec.seed, f"hgp/{spec.parties[index].name}/split"))


def hgp_task(opened: Opened) -> HgpTask:
    """The task of a run at this party."""
    run, spec = opened.spec, opened.spec.settings(HgpSpec)
    sets = row_sets(run, opened.index, len(opened.table))
    labels = opened.labels(spec.task.classes).values.astype(np.int64)
    features = np.asarray(opened.table.features).astype(run.dtype)
    training, validation, test = (Part(features[rows], labels[rows]) for rows in (sets.lower, sets.upper, sets.test))
    rows = (training.features, training.labels, validation.features, validation.labels)
    width, dtype = features.shape[1], np.dtype(run.dtype)
    step = ConstantStep(spec.outer.optimiser, spec.outer.step_size)
    task, held = spec.task, (validation, test, training, opened.table.ids[sets.lower], spec.task.classes)
    match task:
        case RegularisationSpec():
            hyper = np.full(width, task.initial, dtype)
            return HgpTask(regularised_logistic(*rows), np.zeros(width, dtype), hyper, step, task.lowest, _two, *held)
        case InfluenceSpec():
            cost = weighted_samples(*rows, weight_decay=task.weight_decay)
            weights = np.ones(len(training.labels), dtype)
            return HgpTask(cost, np.zeros(width, dtype), weights, step, -np.inf, _two, *held, ranks_rows=True)
    x, hyper, cost, scores = _personal(task, training, width, run.seed, dtype)
    return HgpTask(cost, x, hyper, step, -np.inf, scores, *held, counts_accuracy=True)


def _personal(
    task: PersonalisationSpec, training: Part, width: int, seed: int, dtype: np.dtype[np.floating]
) -> tuple[Vector, Vector, BilevelCost, Personal]:
    classes = len(task.classes)
    widths: Sequence[int] = (width, *task.hidden, classes)
    size = sum(before * after + after for before, after in pairwise(widths))
    network: Predictor = dense_network(widths)
    draw = stream(seed, "hgp/initial")
    decays = {"weight_decay": task.weight_decay, "hyper_decay": task.hyper_decay}
    if task.method == "hgp_mtl":
        starts = [initial_network(widths, draw) for _ in range(task.components)]
        if not task.hidden:  # equal models would stay equal for ever
            starts = [draw.standard_normal(size) * 0.01 for _ in starts]
        cost = mixture(network, size, training.features, training.labels, components=task.components, **decays)
        scores = mixed_logits(network, size, task.components)
        return np.concatenate(starts).astype(dtype), np.zeros(task.components, dtype), cost, scores
    cost = class_mask(network, size, training.features, training.labels, classes=classes, **decays)
    return initial_network(widths, draw).astype(dtype), np.zeros(classes, dtype), cost, masked_logits(network, classes)


def _two(x: Tensor, _: Tensor, inputs: Tensor) -> Tensor:
    """Scores of a logistic regression, as of two classes."""
    score = inputs @ x
    return torch.stack([torch.zeros_like(score), score], dim=1)
