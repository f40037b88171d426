"""feature-privacy: what noise on features costs and hides, both kinds of `privacy.features`, on UCI credit and digits.

No paper has such a table. Three organisations hold a third of the columns each; labels are in the clear, so that noise
on features is all that costs. `once` trains a linear model whose regularisation is tuned (BAMBI, `hyper_parameters`)
on rows that were noised before; `per_sum` takes few gradient steps on a linear model (`joint`), each noised, with two
of three parties trusted to keep their noise. Rows are bounded after public figures have scaled the columns: figures
that everybody may know, no row taught them. ε is that of one row of one party, for all runs at that setting (`once`)
or for the run (`per_sum`); metrics are on held-out rows, noised like the others; one draw of noise and of the split.
A setting whose accuracy is not above that of always answering with the most frequent class (and whose AUC is about ½)
has learnt nothing.

`column attack` mounts the attacks of `parley attack` on rows that are noised `once`, random ones of three parties: what
a coordinator tells of a value from the sums of a run (the share of values told from another row's, ½ by chance), or of
a column from two runs that differ by it (correlation), beside what ε allows.

    UCI credit   I.-C. Yeh, "Default of Credit Card Clients", UCI Machine Learning Repository; 30000 rows, 23 columns.
                 `data` is a folder with uci_credit_card.csv, or the same packed by xz
    digits       scikit-learn's; 1797 rows, 64 columns

    parley reproduce feature-privacy --data DIR [--quick] [--json FILE] [--plot FILE]
"""

import math
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow
import pyarrow.parquet

from parley.attacks.columns import DIFFERENCING, PROJECTION, sums_over_rows, told_apart
from parley.attacks.protections import LINEAR, noised
from parley.attacks.protections import spec_of as spec_of_fields
from parley.attacks.suite import ATTACKS, attack, subject_of
from parley.attacks.tapes import rehearse
from parley.datasets import Dataset, load_dataset
from parley.services.coordinator.config import LabelConfig
from parley.services.coordinator.labels import LabelStore
from parley.services.party.config import PreprocessConfig, TableConfig
from parley.services.party.tables import TableStore
from parley.simulation.runs import holdings_of, train_holdings
from parley.spec.run import RunSpec

Row = dict[str, Any]
Kind = Literal["once", "per_sum"]

PARTIES = ("bank", "shop", "telco")
KINDS: tuple[Kind, ...] = ("once", "per_sum")
DELTA = 1e-6
QUICK_ROWS = 3000
ATTACKED = {PROJECTION: "column attack", DIFFERENCING: "column attack on two runs"}
EPSILONS = (1.0, 2.0, 4.0, 8.0, 12.0)
_AMOUNTS = {f"BILL_AMT{month}": (0.0, 1e5) for month in range(1, 7)} | {
    f"PAY_AMT{month}": (0.0, 1e4) for month in range(1, 7)
}
CREDIT_FIGURES = _AMOUNTS | {
    "LIMIT_BAL": (2e5, 2e5),
    "SEX": (1.5, 0.5),
    "EDUCATION": (2.0, 1.0),
    "MARRIAGE": (1.5, 0.5),
    "AGE": (35.0, 15.0),
    **{f"PAY_{month}": (0.0, 2.0) for month in (0, 2, 3, 4, 5, 6)},
}
"""Shift and scale of each column, by what the columns mean."""


@dataclass(frozen=True)
class Subject:
    """A data set, and how its rows are bounded."""

    name: str
    data: Dataset
    figures: dict[str, tuple[float, float]]
    bound: float
    loss: str
    steps: int = 10
    """Of `per_sum`."""
    step: float = 3.0
    """Their size."""


def run(quick: bool, data: Path | None = None, seed: int = 0) -> list[Row]:
    """Accuracy (and AUC) without noise and by ε, and what column attacks recover by ε.

    `quick` takes two ε and, where credit's file is there, its first rows only.
    """
    epsilons = (12.0, 4.0) if quick else tuple(reversed(EPSILONS))
    rows: list[Row] = []
    for subject in subjects(quick, data):
        labels = np.unique(np.asarray(subject.data.labels), return_counts=True)[1]
        rows.append(_row(f"{subject.name} most frequent class", "accuracy", labels.max() / labels.sum()))
        for kind in KINDS:
            for epsilon in (None, *epsilons):
                case = f"{subject.name} {kind} " + ("no noise" if epsilon is None else f"eps={epsilon:g}")
                rows += [_row(case, metric, value) for metric, value in figures(subject, epsilon, seed, kind).items()]
    return rows + [row for epsilon in (None, *epsilons) for row in attacked(epsilon)]


def attacked(epsilon: float | None) -> list[Row]:
    """What a coordinator that knows all but one value tells of it, from one run's sums and from two runs."""
    if epsilon is None:
        with subject_of(spec_of_fields(LINEAR), ATTACKS["columns"].rows) as subject:
            seen = sums_over_rows(subject, rehearse(subject))
            if seen is None:
                raise ValueError("a linear run has sums over rows")
            columns = subject.features[subject.spec.parties[-1].name][seen[0]]
            told = told_apart(seen[1], columns, math.inf, math.inf)
        return [_row("column attack no noise", metric, value) for metric, value in told.shares.items()]
    noisy = spec_of_fields(noised(LINEAR, "once", epsilon))
    return [
        _row(f"{ATTACKED[finding.attack]} eps={epsilon:g}", metric, value)
        for finding in attack(noisy, ("columns", "differencing"))
        for metric, value in finding.shares.items()
    ]


def subjects(quick: bool, data: Path | None) -> list[Subject]:
    """The data sets."""
    digits = load_dataset("digits")
    found = [Subject("digits", digits, dict.fromkeys(digits.columns, (0.0, 1.0)), 2.0, "softmax")]
    folder = data or Path("data")
    names = ("uci_credit_card.csv", "uci_credit_card.csv.xz")
    files = [place / name for place in (folder, folder / "credit") for name in names if (place / name).is_file()]
    if not files and quick:
        return found
    if not files:
        raise FileNotFoundError(f"{folder} has no {names[0]}: give the folder that has it as --data")
    credit = load_dataset(files[0], label_column="default.payment.next.month", id_column="ID")
    if quick:
        credit = credit.take(np.arange(min(QUICK_ROWS, len(credit.ids))))
    return [Subject("credit", credit, CREDIT_FIGURES, 1.0, "logistic", 20, 5.0), *found]


def figures(subject: Subject, epsilon: float | None, seed: int = 0, kind: Kind = "once") -> dict[str, float]:
    """What one run reaches on held-out rows."""
    with tempfile.TemporaryDirectory(prefix="parley-features-") as folder:
        stores, labels = tables(subject, Path(folder))
        spec = RunSpec.model_validate(spec_of(subject, epsilon, kind) | {"seed": seed})
        holdings = holdings_of(spec, stores, row_noise_key=seed.to_bytes(32, "big"))
        metrics = train_holdings(spec, holdings, labels.load).metrics
    wanted = {"test accuracy": "accuracy", "test auc": "AUC"}
    return {wanted[name]: value for name, value in metrics.items() if name in wanted}


def spec_of(subject: Subject, epsilon: float | None, kind: Kind = "once") -> dict[str, Any]:
    """The run: a linear model of which each party's regularisation is tuned, or one that takes gradient steps."""
    noise: dict[str, Any] = {"kind": kind, "epsilon": epsilon, "delta": DELTA, "bound": subject.bound}
    train = {"problem": "hyper_parameters", "upper": {"steps": 15, "batch": None}}
    if kind == "per_sum":
        noise |= {"step_bound": subject.bound, "honest": 2}
        train = {
            "problem": "joint",
            "model": {"kind": "identity"},
            "upper": {"steps": subject.steps, "batch": None},
            "lower": {"solver": "sgd", "optimiser": {"kind": "sgd", "step": subject.step}},
        }
    return {
        "name": "features",
        "dtype": "float64",
        "parties": list(PARTIES),
        "split": {"lower": 0.6, "upper": 0.2, "test": 0.2},
        "train": {"algorithm": "bambi", "loss": subject.loss, **train},
        "privacy": {"labels": {"mechanism": "off"}, "features": {"kind": "none"} if epsilon is None else noise},
        "evaluate_every": 0,
    }


def tables(subject: Subject, folder: Path) -> tuple[dict[str, TableStore], LabelStore]:
    """Every organisation's third of the columns, with public figures, and the labels."""
    data, ids = subject.data, subject.data.ids.tolist()
    stores = {}
    for name, chosen in zip(PARTIES, np.array_split(np.arange(len(data.columns)), len(PARTIES)), strict=True):
        columns = {data.columns[place]: np.asarray(data.features[:, place], dtype=np.float64) for place in chosen}
        pyarrow.parquet.write_table(pyarrow.table({"id": ids, **columns}), folder / f"{name}.parquet")
        public = {column: dict(zip(("shift", "scale"), subject.figures[column], strict=True)) for column in columns}
        declared = PreprocessConfig.model_validate({"figures": public})
        stores[name] = TableStore({"train": TableConfig(path=str(folder / f"{name}.parquet"), preprocess=declared)})
    written = pyarrow.table({"id": ids, "label": [str(label) for label in np.asarray(data.labels)]})
    pyarrow.parquet.write_table(written, folder / "labels.parquet")
    return stores, LabelStore({"train": LabelConfig(path=str(folder / "labels.parquet"))})


def plot(rows: list[Row], path: Path) -> None:
    """Accuracy against ε, with what was reached without noise, and with nothing learnt."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    found = {row["case"]: row["ours"] for row in rows if row["metric"] == "accuracy"}
    for name in dict.fromkeys(case.rpartition(" eps=")[0] for case in found if " eps=" in case):
        points = sorted(
            (float(case.rpartition("=")[2]), value) for case, value in found.items() if case.startswith(f"{name} eps=")
        )
        (line,) = axes.plot(*zip(*points, strict=True), marker="o", label=name)
        axes.axhline(found[f"{name} no noise"], color=line.get_color(), linestyle="--", linewidth=1)
        nothing = found[f"{name.split()[0]} most frequent class"]
        axes.axhline(nothing, color=line.get_color(), linestyle=":", linewidth=1)
    axes.set_xscale("log")
    axes.set_xlabel("ε of one row of one party (dashed: no noise, dotted: nothing learnt)")
    axes.set_ylabel("test accuracy")
    axes.legend()
    figure.savefig(path)


def _row(case: str, metric: str, ours: float) -> Row:
    return {"case": case, "metric": metric, "ours": ours, "paper": None}
