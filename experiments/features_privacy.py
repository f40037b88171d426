"""features-privacy: what noise on rows costs, `privacy.features: {kind: once}` on UCI credit and on digits.

No paper has such a table. Three organisations hold a third of the columns each and train a linear model whose
regularisation is tuned (BAMBI, `hyper_parameters`); labels are in the clear, so that noise on features is all that
costs. Rows are bounded after public figures have scaled the columns: figures that everybody may know, no row taught
them. ε is that of one row of one party, for all runs at that setting; metrics are on held-out rows, noised like the
others; one draw of noise and of the split, which all settings share. `nothing` is what always answering with the most
frequent class gets: a setting whose accuracy is not above it (and whose AUC is about ½) has learnt nothing.

    UCI credit   I.-C. Yeh, "Default of Credit Card Clients", UCI Machine Learning Repository; 30000 rows, 23 columns.
                 `data` is a folder with uci_credit_card.csv, or the same packed by xz
    digits       scikit-learn's; 1797 rows, 64 columns

    parley reproduce features-privacy --data DIR [--quick] [--json FILE] [--plot FILE]
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet

from parley.datasets import Dataset, load_dataset
from parley.services.coordinator.config import LabelConfig
from parley.services.coordinator.labels import LabelStore
from parley.services.party.config import PreprocessConfig, TableConfig
from parley.services.party.tables import TableStore
from parley.simulation.runs import holdings_of, train_holdings
from parley.spec.run import RunSpec

Row = dict[str, Any]

PARTIES = ("bank", "shop", "telco")
DELTA = 1e-6
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


def run(quick: bool, data: Path | None = None, seed: int = 0) -> list[Row]:
    """Accuracy (and AUC of two classes) without noise and by ε; `quick` takes digits and two ε."""
    rows: list[Row] = []
    for subject in subjects(quick, data):
        labels = np.unique(np.asarray(subject.data.labels), return_counts=True)[1]
        rows.append(_row(f"{subject.name}, nothing", "accuracy", labels.max() / labels.sum()))
        for epsilon in (None, 4.0, 12.0) if quick else (None, *reversed(EPSILONS)):
            case = f"{subject.name}, " + ("no noise" if epsilon is None else f"ε = {epsilon:g}")
            rows += [_row(case, metric, value) for metric, value in figures(subject, epsilon, seed).items()]
    return rows


def subjects(quick: bool, data: Path | None) -> list[Subject]:
    """The data sets."""
    digits = load_dataset("digits")
    found = [Subject("digits", digits, dict.fromkeys(digits.columns, (0.0, 1.0)), 2.0, "softmax")]
    if quick:
        return found
    folder = data or Path("data")
    names = ("uci_credit_card.csv", "uci_credit_card.csv.xz")
    files = [place / name for place in (folder, folder / "credit") for name in names if (place / name).is_file()]
    if not files:
        raise FileNotFoundError(f"{folder} has no {names[0]}: give the folder that has it as --data")
    credit = load_dataset(files[0], label_column="default.payment.next.month", id_column="ID")
    return [Subject("credit", credit, CREDIT_FIGURES, 1.0, "logistic"), *found]


def figures(subject: Subject, epsilon: float | None, seed: int = 0) -> dict[str, float]:
    """What one run reaches on held-out rows."""
    with tempfile.TemporaryDirectory(prefix="parley-features-") as folder:
        stores, labels = tables(subject, Path(folder))
        spec = RunSpec.model_validate(spec_of(subject, epsilon) | {"seed": seed})
        holdings = holdings_of(spec, stores, row_noise_key=seed.to_bytes(32, "big"))
        metrics = train_holdings(spec, holdings, labels.load).metrics
    wanted = {"test accuracy": "accuracy", "test auc": "AUC"}
    return {wanted[name]: value for name, value in metrics.items() if name in wanted}


def spec_of(subject: Subject, epsilon: float | None) -> dict[str, Any]:
    """The run: a linear model of which each party's regularisation is tuned."""
    noise = {"kind": "once", "epsilon": epsilon, "delta": DELTA, "bound": subject.bound}
    return {
        "name": "features",
        "dtype": "float64",
        "parties": list(PARTIES),
        "split": {"lower": 0.6, "upper": 0.2, "test": 0.2},
        "train": {
            "algorithm": "bambi",
            "problem": "hyper_parameters",
            "loss": subject.loss,
            "upper": {"steps": 15, "batch": None},
        },
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
    for name in dict.fromkeys(case.partition(",")[0] for case in found):
        points = sorted(
            (float(case.rpartition("= ")[2]), value) for case, value in found.items() if f"{name}, ε" in case
        )
        (line,) = axes.plot(*zip(*points, strict=True), marker="o", label=name)
        axes.axhline(found[f"{name}, no noise"], color=line.get_color(), linestyle="--", linewidth=1)
        axes.axhline(found[f"{name}, nothing"], color=line.get_color(), linestyle=":", linewidth=1)
    axes.set_xscale("log")
    axes.set_xlabel("ε of one row of one party (dashed: no noise, dotted: nothing learnt)")
    axes.set_ylabel("test accuracy")
    axes.legend()
    figure.savefig(path)


def _row(case: str, metric: str, ours: float) -> Row:
    return {"case": case, "metric": metric, "ours": ours, "paper": None}
