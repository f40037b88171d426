"""Rows that three clinics might hold: the same columns about different people, with labels of their own.

python sample_rows.py bank.parquet shop.parquet telco.parquet
"""

import sys

import numpy as np
import pyarrow as pa
from pyarrow import parquet

ROWS, COLUMNS = 52_000, 8
WEIGHTS = np.array([1.5, -1.0, 0.8, 0.6, -0.5, 0.0, 0.0, 0.0])
"""Three columns have nothing to do with the label."""


def rows_of(clinic: int) -> pa.Table:
    """One clinic's rows; each clinic sees somewhat different people."""
    rng = np.random.default_rng(clinic)
    features = rng.normal(0.2 * (clinic - 1), 1.0, (ROWS, COLUMNS)).clip(-4, 4).round(3)
    labels = rng.random(ROWS) < 1 / (1 + np.exp(-features @ WEIGHTS))
    columns = {f"x{column}": features[:, column] for column in range(COLUMNS)}
    ids = [f"{clinic}-{row:05d}" for row in range(ROWS)]
    return pa.table({"id": ids, **columns, "label": labels.astype(np.int64).astype(str)})


for number, path in enumerate(sys.argv[1:]):
    parquet.write_table(rows_of(number), path)
