"""What a run of the FedBiO family learns at a party: the objective from the party's own tables, and what it leaves."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from itertools import pairwise
from math import isqrt
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import logit

from parley.numerics.few_shot import sample_task
from parley.numerics.storm import Vector
from parley.numerics.streams import stream
from parley.party.fedbio.hyper_parameters import HyperParameters
from parley.party.fedbio.hyper_representation import HyperRepresentation
from parley.party.fedbio.objectives import BilevelObjective, DataCleaning, Rows, initial_network
from parley.party.fedbio.suspects import ranked_rows, weights_picture
from parley.party.roles import Opened
from parley.protocols.fedbio.settings import CleaningSpec, FedbioSpec, HyperParametersSpec, RepresentationSpec
from parley.tables.errors import RowsDiffer
from parley.tables.loading import Labels, Table, id_digest

SUSPECTS, PICTURE, COEFFICIENTS = "suspects.csv", "weights.png", "coefficients.csv"


class ImagesUnfit(ValueError):
    """A party's rows are no square images, or too few of a class."""


class Task(Protocol):
    """An objective, where it starts, and what a finished run leaves with the party."""

    @property
    def objective(self) -> BilevelObjective:
        """f and g of this party."""

    def start(self, generator: np.random.Generator) -> tuple[Vector, Vector]:
        """The first x and y."""

    def model(self, x: Vector, y: Vector) -> Mapping[str, Vector]:
        """The model by named parts."""

    def findings(self, x: Vector, y: Vector) -> Mapping[str, bytes]:
        """Files for the party's owner."""


class TableTask(Task, Protocol):
    """A task that was made from a party's tables, and knows how many of their rows it speaks of."""

    @property
    def rows_of_sample(self) -> int:
        """Rows of the table behind one row (or task) of a batch."""

    @property
    def test_rows(self) -> int:
        """Rows that the model is judged on besides the checked ones; 0 for none."""

    @property
    def starts_by_seed(self) -> bool:
        """Whether the first model is drawn by the seed."""

    @property
    def chosen_rows(self) -> str:
        """Tells two choices of training rows apart."""


def task_of(opened: Opened) -> TableTask:
    """The task of a run at this party."""
    match opened.spec.settings(FedbioSpec).task:
        case CleaningSpec() as task:
            return _cleaning(opened, task)
        case HyperParametersSpec() as task:
            return _hyper_parameters(opened, task)
        case RepresentationSpec() as task:
            return _representation(opened, task)


@dataclass(frozen=True)
class Cleaning:
    """Data cleaning: x weighs the party's training rows, y is the shared model."""

    objective: DataCleaning
    ids: NDArray[np.str_]
    """Of the training rows."""
    classes: tuple[str, ...]
    record_ids: tuple[str, ...] = ()
    """Of all rows: training, checked, then test; those of another table carry its name."""
    rows_of_sample: int = 1
    """A batch is of rows."""

    @property
    def starts_by_seed(self) -> bool:
        """Networks are drawn; softmax regression starts at zero."""
        return len(self.objective.widths) > 2

    @property
    def chosen_rows(self) -> str:
        """A digest of the training rows; the others of the table are the checked ones."""
        return id_digest(self.ids)

    @property
    def test_rows(self) -> int:
        """Rows of the test table."""
        return 0 if self.objective.test is None else len(self.objective.test[1])

    def start(self, generator: np.random.Generator) -> tuple[Vector, Vector]:
        """Every weight ½; the same network at all parties."""
        return np.zeros(self.objective.upper_size), initial_network(self.objective.widths, generator)

    def model(self, x: Vector, y: Vector) -> Mapping[str, Vector]:  # noqa: ARG002 (the weights are no part of it)
        """Weights and biases, layer by layer."""
        return _layers(self.objective.widths, y)

    def findings(self, x: Vector, y: Vector) -> Mapping[str, bytes]:
        """The ranked rows and their picture."""
        labels = self.objective.labels
        predicted = self.objective.predict(y, self.objective.features)
        return {
            SUSPECTS: ranked_rows(self.ids.tolist(), x, labels, predicted, self.classes),
            PICTURE: weights_picture(x, labels, predicted),
        }


@dataclass(frozen=True)
class Tuning:
    """Hyper-parameters: x stands for shared L2 coefficients, y is the shared model."""

    objective: HyperParameters
    columns: tuple[str, ...]
    classes: tuple[str, ...]
    initial: float
    chosen_rows: str
    """A digest of the training rows."""
    rows_of_sample: int = 1
    """A batch is of rows."""
    starts_by_seed: bool = False
    """Softmax regression starts at zero, coefficients at `initial`."""

    @property
    def test_rows(self) -> int:
        """Rows of the test table."""
        return 0 if self.objective.test is None else len(self.objective.test[1])

    def start(self, generator: np.random.Generator) -> tuple[Vector, Vector]:  # noqa: ARG002 (nothing is drawn)
        """The initial coefficients, and a model of zeros."""
        return np.full(self.objective.upper_size, logit(self.initial / self.objective.highest)), np.zeros(
            self.objective.lower_size
        )

    def model(self, x: Vector, y: Vector) -> Mapping[str, Vector]:
        """Weights and biases, and the coefficients that they were fitted with."""
        return {**_layers(self.objective.widths, y), "coefficients": self.objective.values(x)}

    def findings(self, x: Vector, y: Vector) -> Mapping[str, bytes]:  # noqa: ARG002
        """The coefficients by name; every party has the same."""
        names = {"columns": self.columns, "classes": self.classes, "one": ("all",)}[self.objective.coefficients]
        text = StringIO(newline="")
        csv.writer(text).writerows([("name", "coefficient"), *zip(names, self.objective.values(x), strict=True)])
        return {COEFFICIENTS: text.getvalue().encode()}


@dataclass(frozen=True)
class Representation:
    """Hyper-representation: x is the shared backbone, y the heads of the party's own tasks."""

    objective: HyperRepresentation
    rows_of_sample: int
    """Images of a task's smaller part: those to learn from, or those to judge by."""
    chosen_rows: str
    """How many tasks of which shape: the seed draws their images."""
    test_rows: int = 0
    """Tasks are judged by images of their own."""
    starts_by_seed: bool = True
    """The backbone is drawn."""

    def start(self, generator: np.random.Generator) -> tuple[Vector, Vector]:
        """The same backbone at all parties; heads of zeros."""
        return self.objective.initial_upper(generator), np.zeros(self.objective.lower_size)

    def model(self, x: Vector, y: Vector) -> Mapping[str, Vector]:
        """The backbone, and a head for each task."""
        return {"backbone": x, "heads": y.reshape(len(self.objective.tasks), -1)}

    def findings(self, x: Vector, y: Vector) -> Mapping[str, bytes]:  # noqa: ARG002
        """Nothing besides the model."""
        return {}


def _layers(widths: Sequence[int], y: Vector) -> dict[str, Vector]:
    """Weights and biases, layer by layer."""
    parts, at = {}, 0
    for layer, (before, after) in enumerate(pairwise(widths)):
        parts[f"layers.{layer}.weight"] = y[at : at + before * after].reshape(before, after)
        at += before * after
        parts[f"layers.{layer}.bias"] = y[at : at + after]
        at += after
    return parts


class SplitRows(NamedTuple):
    """A party's rows for the two levels."""

    training: Rows
    """Rows of its own table that the lower level learns from."""
    labels: Rows
    """Of those."""
    judging: tuple[Vector, Rows]
    """Features and labels that the upper level judges by."""
    judging_ids: list[str]


def _split(opened: Opened, classes: tuple[str, ...], judging: str | float) -> SplitRows:
    """The party's own rows below; above another table's, or a share of its own that the seed draws."""
    own = opened.table
    labels = _labels(opened, opened.spec.table_of(opened.index), own, classes)
    if isinstance(judging, str):
        return SplitRows(np.arange(len(own)), labels, *_further(opened, judging, classes))
    training, chosen = _divided(opened, len(own), judging)
    above = np.asarray(own.features[chosen]), labels[chosen]
    return SplitRows(training, labels[training], above, own.ids[chosen].tolist())


def _hyper_parameters(opened: Opened, task: HyperParametersSpec) -> Tuning:
    own, rows = opened.table, _split(opened, task.classes, task.validation)
    objective = HyperParameters(
        own.features[rows.training],
        rows.labels,
        *rows.judging,
        classes=len(task.classes),
        coefficients=task.coefficients,
        lowest=task.lowest,
        highest=task.highest,
        test=None if task.test is None else _further(opened, task.test, task.classes)[0],
    )
    return Tuning(objective, tuple(own.columns), task.classes, task.initial, id_digest(own.ids[rows.training]))


def _cleaning(opened: Opened, task: CleaningSpec) -> Cleaning:
    own, rows = opened.table, _split(opened, task.classes, task.checked)
    training = rows.training
    test, test_ids = (None, []) if task.test is None else _further(opened, task.test, task.classes)
    wrong = None
    if task.truth is not None:
        wrong = rows.labels != _truth(opened, task.truth, own.ids[training], task.classes)
    objective = DataCleaning(
        own.features[training],
        rows.labels,
        *rows.judging,
        classes=len(task.classes),
        ridge=task.regularisation,
        hidden=task.hidden,
        test=test,
        wrong=wrong,
    )
    record_ids = (*own.ids[training].tolist(), *rows.judging_ids, *test_ids)
    return Cleaning(objective, own.ids[training], task.classes, record_ids)


def _divided(opened: Opened, rows: int, share: float) -> tuple[Rows, Rows]:
    """Training rows, and checked ones drawn by the seed."""
    party = opened.spec.parties[opened.index].name
    order = stream(opened.spec.seed, f"fedbio/{party}/checked").permutation(rows)
    count = min(max(1, round(share * rows)), rows - 1)
    if rows < 2:
        raise RowsDiffer(f"table {opened.table.name} has too few rows to set a share of them apart")
    return np.sort(order[count:]), np.sort(order[:count])


def _further(opened: Opened, name: str, classes: tuple[str, ...]) -> tuple[tuple[Vector, Rows], list[str]]:
    """Rows and labels of another table of this party, with the columns and the scaling of its own; and their ids."""
    table = opened.tables.load_like(name, opened.table)
    ids = [f"{name}: {identity}" for identity in table.ids.tolist()]
    return (np.asarray(table.features), _labels(opened, name, table, classes)), ids


def _labels(opened: Opened, name: str, table: Table, classes: tuple[str, ...]) -> Rows:
    return _aligned(opened.tables.labels(name, classes), table.ids, name)


def _truth(opened: Opened, name: str, ids: NDArray[np.str_], classes: tuple[str, ...]) -> Rows:
    return _aligned(opened.tables.labels(name, classes), ids, name)


def _aligned(labels: Labels, ids: NDArray[np.str_], name: str) -> Rows:
    """Labels in the order of `ids`; both are sorted, so the usual case is the identity."""
    if not np.array_equal(labels.ids, ids):
        position = {identity: row for row, identity in enumerate(labels.ids.tolist())}
        if any(identity not in position for identity in ids.tolist()):
            raise RowsDiffer(f"some rows have no label in table {name}: label them, or leave them out")
        return np.asarray(labels.values[[position[identity] for identity in ids.tolist()]], dtype=np.int64)
    return np.asarray(labels.values, dtype=np.int64)


def _representation(opened: Opened, task: RepresentationSpec) -> Representation:
    images = _images_by_class(opened, task)
    generator = stream(opened.spec.seed, f"fedbio/{opened.spec.parties[opened.index].name}/tasks")
    tasks = [
        sample_task(
            images,
            ways=task.ways,
            shots=task.shots,
            queries=task.queries,
            generator=generator,
            rotate=task.rotate,
        )
        for _ in range(task.tasks)
    ]
    objective = HyperRepresentation(tasks, task.ways, task.filters, task.layers, task.regularisation)
    shape = f"{task.tasks} of {task.ways} × ({task.shots} + {task.queries}), turned: {task.rotate}"
    return Representation(objective, task.ways * min(task.shots, task.queries), shape)


def _images_by_class(opened: Opened, task: RepresentationSpec) -> NDArray[np.uint8]:
    """(classes, examples, side, side) of the classes that have enough images, all cut to the same number."""
    table, name = opened.table, opened.spec.table_of(opened.index)
    side = isqrt(len(table.columns))
    if side * side != len(table.columns):
        raise ImagesUnfit(f"table {name} has {len(table.columns)} columns, which make no square image")
    labels = _aligned(opened.tables.labels(name), table.ids, name)
    counts = np.bincount(labels)
    enough = np.flatnonzero(counts >= task.shots + task.queries)
    if len(enough) < task.ways:
        raise ImagesUnfit(
            f"table {name} has too few classes of {task.shots + task.queries} images for tasks of {task.ways} classes: "
            "lower ways, shots or queries"
        )
    each = int(counts[enough].min())
    pixels = np.clip(np.rint(table.features * (255.0 / task.ink)), 0, 255).astype(np.uint8)
    stacked = [pixels[np.flatnonzero(labels == label)[:each]] for label in enough]
    return np.stack(stacked).reshape(len(enough), each, side, side)
