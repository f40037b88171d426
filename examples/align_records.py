"""Three companies find the customers that they share, and train on them: python examples/align_records.py [FOLDER]

Starts a coordinator and three parties as processes of this machine. Each has some rows and some columns of the digits,
in an order of its own, and writes ids in its own way. Nobody has exactly the rows of anybody else.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
from sklearn.datasets import load_digits

from parley.local import LocalFederation

SHARES = {"bank": (0, 1500), "shop": (100, 1700), "telco": (50, 1600), "labels": (200, 1797)}
SPELLINGS = {"bank": "{}", "shop": " {} ", "telco": "{}.0", "labels": "{}"}
SPEC = """
name: shared-customers
parties: [bank, shop, telco]
alignment: customers
split: {lower: 0.8, upper: lower, test: 0.2}   # local rounds: both levels learn from the same rows
train:
  algorithm: bambi
  hypergradient: local
  model: {kind: mlp, hidden: [64], out: 16}
privacy:
  labels: {mechanism: once, epsilon: 6}
"""


def write_tables(folder: Path) -> dict[str, dict[str, dict[str, str]]]:
    """A table for each company, and the labels."""
    folder.mkdir(parents=True, exist_ok=True)
    data = load_digits()
    blocks = dict(zip(SHARES, np.array_split(data.data / 16, 3, axis=1), strict=False)) | {"labels": None}
    generator = np.random.default_rng(0)
    tables = {}
    for holder, (first, last) in SHARES.items():
        rows = generator.permutation(np.arange(first, last))
        columns = {"id": [SPELLINGS[holder].format(row) for row in rows]}
        block = blocks[holder]
        if block is None:
            columns["label"] = data.target[rows]
        else:
            columns |= {f"pixel{index}": values for index, values in enumerate(block[rows].T)}
        path = folder / f"{holder}.csv"
        pa.csv.write_csv(pa.table(columns), path)
        tables[holder] = {"train": {"path": str(path)}}
    return tables


def main(folder: Path) -> None:
    """Align, train, and say what came out."""
    tables = write_tables(folder / "data")
    labels = tables.pop("labels")
    with LocalFederation(folder / "federation", tables, labels, ready_seconds=300) as local, local.connect() as client:
        alignment = client.align("customers", list(tables))
        for held in alignment.tables:
            print(f"{held.holder}: {held.ids} ids, {alignment.matched} of them common to all")  # noqa: T201
        metrics = client.start(SPEC).result()
    print(f"test accuracy {metrics['test accuracy']:.3f} on rows that all of them have")  # noqa: T201


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp()))
