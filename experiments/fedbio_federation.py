"""Data cleaning on MNIST by real processes: ten parties and a coordinator over mutual TLS, sums under pairwise masks.

The parties have the rows, names and seed of `fedbio_cleaning`, and the settings that a spec has by default, as in
`fedbio_suspects`: both end with the same figures.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from parley.experiments.fedbio_cleaning import CLASSES, PARTIES, ROUNDS, SEED, Cleaned, Client, Digits
from parley.local import LocalFederation


def spec(rounds: int = ROUNDS) -> str:
    """The run: everything else is the spec's default."""
    return yaml.safe_dump(
        {
            "name": "mnist-cleaning",
            "seed": SEED,
            "dtype": "float64",
            "table": "records",
            "parties": [f"party-{m}" for m in range(PARTIES)],
            "train": {
                "algorithm": "fedbio",
                "rounds": rounds,
                "task": {
                    "kind": "data_cleaning",
                    "classes": [str(label) for label in range(CLASSES)],
                    "checked": "checked",
                    "test": "test",
                    "truth": "truth",
                },
            },
            "evaluate_every": 50,
            "checkpoint_every": 100,
        }
    )


def tables(parts: Sequence[Client], digits: Digits, folder: Path) -> dict[str, dict[str, Any]]:
    """Write each party's files; test rows are dealt out, so that the parties' mistakes add up to the pooled ones."""
    folder.mkdir(parents=True, exist_ok=True)
    made: dict[str, dict[str, Any]] = {}
    for m, part in enumerate(parts):
        rows = slice(m, None, PARTIES)
        content = {
            "records": (part.objective.features, part.objective.labels),
            "truth": (part.objective.features, part.right),
            "checked": (part.objective.validation_features, part.objective.validation_labels),
            "test": (digits.test[rows], digits.test_labels[rows]),
        }
        made[f"party-{m}"] = {}
        for name, (features, labels) in content.items():
            path = folder / f"party-{m}-{name}.npz"
            ids = np.array([f"{row:06d}" for row in range(len(labels))])
            np.savez(path, x=features, label=labels, ids=ids)
            made[f"party-{m}"][name] = {"path": str(path), "label": "label"}
    return made


def clean_by_processes(
    parts: Sequence[Client], digits: Digits, folder: Path, rounds: int = ROUNDS
) -> tuple[Cleaned, dict[str, float]]:
    """Start the federation in `folder`, train, and return the figures that the coordinator got as sums."""
    files = tables(parts, digits, folder / "data")
    with LocalFederation(folder / "federation", files, {}, ready_seconds=300) as local, local.connect() as client:
        metrics = client.start(spec(rounds)).result()
    return Cleaned(metrics["test error"], metrics["detection AUC"], float("nan")), metrics
