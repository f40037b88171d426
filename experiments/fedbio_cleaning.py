"""fedbio-cleaning: ten parties find the wrong labels in their own rows, each with clean rows of one class only.

FedBiO paper, section 5.1 and figures 1 and 2; MNIST (LeCun, Cortes, Burges), pooled to 14×14. Each party has 4500
training rows, of which a share ρ got a label drawn uniformly from all ten, and 50 clean validation rows, all of its own
class, so that no party could clean alone. The model is a softmax regression, the weights are sigmoid(x).
`FedBiO` and `FedBiOAcc` are the paper's algorithms; `default` is what a spec gets that says nothing but its task.

differs from the paper: it fits three fully connected layers and draws curves only, so that there is no figure to put
beside ours; `hidden` of `DataCleaning` gives a perceptron.
"""

import gzip
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score

from parley.coordinator.fedbio import rounds as coordinator
from parley.experiments.fedbio_parties import from_zero, train
from parley.experiments.horizontal_baselines import NestSettings, fedavg, fednest
from parley.numerics.storm import Schedule, Vector
from parley.numerics.streams import stream
from parley.party.fedbio import steps as party
from parley.party.fedbio.objectives import DataCleaning, Rows

PARTIES, TRAINING_ROWS, VALIDATION_ROWS, CLASSES = 10, 4500, 50, 10
ROUNDS, LOCAL_STEPS, SEED = 300, 5, 0
VALIDATION_TARGET = 0.25
CERTAIN = 40.0  # sigmoid(40) rounds to 1: FedAvg counts every row fully

FEDBIO = party.Settings(eta=1000.0, gamma=0.5, tau=0.5, local_steps=LOCAL_STEPS, upper="private", radius=100.0)
FEDBIO_ACC = party.Settings(  # appendix B.1: δ = 30, u₀ = 10000, c = 0.2, τ = 0.01, η = 200, γ = 1
    eta=200.0,
    gamma=1.0,
    tau=0.01,
    local_steps=LOCAL_STEPS,
    upper="private",
    radius=100.0,
    accelerated=True,
    schedule=Schedule(delta=30.0, offset=10000.0),
    c_nu=0.2,
    c_omega=0.2,
    c_u=0.2,
)
FEDNEST = NestSettings(eta=10000.0, gamma=1.0, tau=0.5, neumann_rounds=5, local_steps=LOCAL_STEPS, shared_upper=False)


class MissingData(FileNotFoundError):
    """The experiment was not told where MNIST is."""


@dataclass(frozen=True, slots=True)
class Digits:
    """MNIST pooled to 14×14, in [0, 1]."""

    training: Vector
    training_labels: Rows
    test: Vector
    test_labels: Rows


@dataclass(frozen=True, slots=True)
class Client:
    """One party's objective, and which of its labels are wrong (known to the experiment alone)."""

    objective: DataCleaning
    corrupted: NDArray[np.bool_]
    right: Rows
    """The labels as they should be."""


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What a run ends with."""

    test_error: float
    auc: float
    """Mean over the parties of the AUC with which small weights point at wrong labels."""
    rounds_to_target: float
    """First round after which the pooled validation error was at most the target; nan if never."""


def load_digits(data: Path) -> Digits:
    """Read the four IDX files of MNIST from `data`/mnist or `data` and pool 2×2 pixels."""
    folder = data / "mnist" if (data / "mnist").is_dir() else data
    return Digits(
        _pooled(_read_idx(folder / "train-images-idx3-ubyte.gz")),
        _read_idx(folder / "train-labels-idx1-ubyte.gz").astype(np.int64),
        _pooled(_read_idx(folder / "t10k-images-idx3-ubyte.gz")),
        _read_idx(folder / "t10k-labels-idx1-ubyte.gz").astype(np.int64),
    )


def clients(digits: Digits, rho: float, seed: int = SEED, rows: int = TRAINING_ROWS) -> list[Client]:
    """Ten parties without common rows; party m's validation rows are all of class m."""
    generator = stream(seed, "fedbio/cleaning")
    order = generator.permutation(len(digits.training_labels))
    rest = order[PARTIES * rows :]
    made = []
    for m in range(PARTIES):
        chosen = order[m * rows : (m + 1) * rows]
        labels = digits.training_labels[chosen].copy()
        noisy = generator.choice(rows, round(rho * rows), replace=False)
        labels[noisy] = generator.integers(0, CLASSES, len(noisy))
        clean = rest[digits.training_labels[rest] == m][:VALIDATION_ROWS]
        objective = DataCleaning(
            digits.training[chosen], labels, digits.training[clean], digits.training_labels[clean], CLASSES
        )
        right = digits.training_labels[chosen]
        made.append(Client(objective, labels != right, right))
    return made


def clean(
    parts: Sequence[Client],
    digits: Digits,
    settings: party.Settings,
    *,
    rounds: int = ROUNDS,
    sampled: int | None = None,
    stop_at_target: bool = False,
    seed: int = SEED,
) -> Cleaned:
    """Train one member of the family and judge the model on clean test rows, the weights by AUC."""
    reached: list[int] = []

    def good_enough(k: int, averages: coordinator.Averages) -> bool:
        if not reached and _validation_error(parts, averages.variables) <= VALIDATION_TARGET:
            reached.append(k)
        return bool(reached) and stop_at_target

    tasks = from_zero([part.objective for part in parts])
    trained = train(tasks, settings, rounds, sampled=sampled, seed=seed, until=good_enough)
    y, weights = trained.states[0].variables.y, [state.variables.x for state in trained.states]
    return Cleaned(_test_error(parts, digits, y), _auc(parts, weights), float(reached[0]) if reached else float("nan"))


def run(quick: bool, data: Path | None = None, seed: int = SEED) -> list[dict[str, object]]:
    """Test error and AUC for each method and noise level, and rounds by the number of parties sampled."""
    if data is None:
        raise MissingData("say where the MNIST IDX files are: --data DIR, with DIR/mnist or the files in DIR")
    digits = load_digits(data)
    rows: list[dict[str, object]] = []
    for rho in (0.95,) if quick else (0.1, 0.4, 0.8, 0.95):
        parts = clients(digits, rho, seed)
        rows += [_row(f"{method} rho={rho}", "test error", e) for method, e in _baselines(parts, digits, seed=seed)]
        methods: Mapping[str, party.Settings] = {"FedBiO": FEDBIO, "FedBiOAcc": FEDBIO_ACC, "default": _default()}
        if not quick:
            methods = {
                **methods,
                "u not averaged": replace(FEDBIO_ACC, average_u=False),
                "hyper step divided by M": replace(FEDBIO_ACC, eta=FEDBIO_ACC.eta / PARTIES),
            }
        for method, settings in methods.items():
            cleaned = clean(parts, digits, settings, seed=seed)
            rows.append(_row(f"{method} rho={rho}", "test error", cleaned.test_error))
            rows.append(_row(f"{method} rho={rho}", "AUC", cleaned.auc))
    for sampled in (2, 10) if quick else (2, 5, 10):
        cleaned = clean(parts, digits, FEDBIO_ACC, sampled=sampled, stop_at_target=True, seed=seed)
        case = f"FedBiOAcc rho={rho}, {sampled} of {PARTIES} parties"
        rows.append(_row(case, f"rounds to validation error {VALIDATION_TARGET}", cleaned.rounds_to_target))
    return rows if quick else [*rows, *_by_processes(parts, digits, rho)]


def _default() -> party.Settings:
    """What a spec gets that says nothing but its task."""
    from parley.experiments.fedbio_federation import spec
    from parley.party.fedbio.role import settings_of
    from parley.protocols.fedbio.settings import FedbioSpec
    from parley.spec.parsing import parse_spec

    return settings_of(parse_spec(spec()).settings(FedbioSpec))


def _by_processes(parts: Sequence[Client], digits: Digits, rho: float) -> list[dict[str, object]]:
    """The same rows by ten party services and a coordinator over gRPC, with a spec's default settings."""
    from parley.experiments.fedbio_federation import clean_by_processes

    with TemporaryDirectory() as folder:
        cleaned, metrics = clean_by_processes(parts, digits, Path(folder))
    case = f"default by processes rho={rho}"
    rows = [_row(case, "test error", cleaned.test_error), _row(case, "AUC", cleaned.auc)]
    return [*rows, _row(case, "phases", metrics["rounds"]), _row(case, "bytes", metrics["bytes"])]


def plot(rows: list[dict[str, object]], path: Path) -> None:
    """Test error against the noise level, one line per method."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if row["metric"] == "test error":
            method, rho = str(row["case"]).split(" rho=")
            lines.setdefault(method, []).append((float(rho), float(str(row["ours"]))))
    for method, points in lines.items():
        axes.plot(*zip(*sorted(points), strict=True), marker="o", label=method)
    axes.set_xlabel("share of labels redrawn, ρ")
    axes.set_ylabel("test error")
    axes.legend()
    figure.savefig(path)


def _baselines(parts: Sequence[Client], digits: Digits, *, seed: int) -> list[tuple[str, float]]:
    """FedAvg on all rows, FedAvg on the rows that are right (an oracle), and FedNest-style hyper-gradients."""
    objectives = [part.objective for part in parts]
    y = np.zeros(objectives[0].lower_size)
    everything = [np.full(o.upper_size, CERTAIN) for o in objectives]
    right = [
        replace(o, features=o.features[~part.corrupted], labels=o.labels[~part.corrupted])
        for o, part in zip(objectives, parts, strict=True)
    ]
    known = [np.full(o.upper_size, CERTAIN) for o in right]

    def averaged(of: Sequence[DataCleaning], weights: Sequence[Vector]) -> float:
        model = fedavg(of, weights, y, rounds=ROUNDS, local_steps=LOCAL_STEPS, gamma=0.5, seed=seed)
        return _test_error(parts, digits, model)

    undecided = [np.zeros(o.upper_size) for o in objectives]
    _, nested, _ = fednest(objectives, undecided, y, FEDNEST, rounds=ROUNDS, seed=seed)
    return [
        ("FedAvg", averaged(objectives, everything)),
        ("clean rows only", averaged(right, known)),
        ("FedNest-style", _test_error(parts, digits, nested)),
    ]


def _validation_error(parts: Sequence[Client], variables: Vector | None) -> float:
    if variables is None:
        return 1.0
    measures = [part.objective.measure(np.empty(0), variables[: part.objective.lower_size]) for part in parts]
    return sum(measure.errors for measure in measures) / sum(measure.rows for measure in measures)


def _test_error(parts: Sequence[Client], digits: Digits, y: Vector) -> float:
    return float(np.mean(parts[0].objective.predict(y, digits.test) != digits.test_labels))


def _auc(parts: Sequence[Client], weights: Sequence[Vector]) -> float:
    return float(np.mean([roc_auc_score(p.corrupted, -x) for p, x in zip(parts, weights, strict=True)]))


def _row(case: str, metric: str, ours: float) -> dict[str, object]:
    return {"case": case, "metric": metric, "ours": ours, "paper": None}


def _read_idx(path: Path) -> NDArray[np.uint8]:
    with gzip.open(path) as file:
        content = file.read()
    dimensions = content[3]
    shape = tuple(int(size) for size in np.frombuffer(content, ">u4", dimensions, 4))
    return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def _pooled(images: NDArray[np.uint8]) -> Vector:
    pooled: Vector = images.reshape(len(images), 14, 2, 14, 2).mean(axis=(2, 4)).reshape(len(images), -1) / 255.0
    return pooled
