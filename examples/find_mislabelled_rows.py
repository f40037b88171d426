"""Three hospitals find wrong labels in their own records: python examples/find_mislabelled_rows.py [FOLDER]

Starts a coordinator and three parties as processes of this machine, with one third of the breast cancer data each.
A fifth of the labels are swapped first, so that at the end we can tell how many of the wrong ones were found.
"""

import csv
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
from sklearn.datasets import load_breast_cancer

from parley.local import LocalFederation

HOSPITALS = ("north", "south", "west")
CHECKED, SWAPPED = 30, 0.2
SPEC = Path(__file__).parent / "fedbio-find-mislabelled-rows.yaml"


def write_tables(folder: Path) -> tuple[dict[str, dict[str, dict[str, str]]], set[str]]:
    """Each hospital's records (some labels swapped) and checked rows; also the ids of the rows that are wrong."""
    folder.mkdir(parents=True, exist_ok=True)
    data = load_breast_cancer()
    features = (data.data - data.data.mean(axis=0)) / data.data.std(axis=0)
    names, labels = [name.replace(" ", "_") for name in data.feature_names], data.target_names[data.target]
    generator = np.random.default_rng(0)
    tables: dict[str, dict[str, dict[str, str]]] = {}
    wrong: set[str] = set()
    for hospital, rows in zip(HOSPITALS, np.array_split(generator.permutation(len(labels)), 3), strict=True):
        tables[hospital] = {}
        for table, chosen in (("checked", rows[:CHECKED]), ("records", rows[CHECKED:])):
            given = labels[chosen].copy()
            if table == "records":
                swapped = generator.choice(len(chosen), round(SWAPPED * len(chosen)), replace=False)
                given[swapped] = np.where(given[swapped] == "benign", "malignant", "benign")
                wrong |= {str(row) for row in chosen[swapped]}
            path = folder / f"{hospital}-{table}.csv"
            columns = {"id": chosen, **dict(zip(names, features[chosen].T, strict=True)), "label": given}
            pa.csv.write_csv(pa.table(columns), path)
            tables[hospital][table] = {"path": str(path), "label": "label"}
    return tables, wrong


def main(folder: Path) -> None:
    """Train, and show what each hospital finds in its own folder."""
    tables, wrong = write_tables(folder / "data")
    federation = LocalFederation(folder / "federation", tables, labels={}, ready_seconds=300)
    with federation as local, local.connect() as client:
        run = client.start(SPEC.read_text())
        run.result()
    for hospital in HOSPITALS:
        found = folder / "federation" / "state" / hospital / "runs" / run.run_id / "suspects.csv"
        with found.open() as file:
            ranked = [row["id"] for row in csv.DictReader(file)]
        wrong_here = wrong.intersection(ranked)
        hits = wrong_here.intersection(ranked[: len(wrong_here)])
        print(f"{hospital}: of its {len(wrong_here)} most suspicious rows, {len(hits)} are wrong; {found}")  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp()))
