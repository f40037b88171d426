"""Hyper-representation on Omniglot by real processes: five archives learn a backbone for characters nobody has shown.

FedBiO (Li, Huang and Huang), Figure 3 and appendix B.2: 5-way 1-shot tasks, 15 queries for each class. The background
characters are dealt to five parties, which learn one backbone under pairwise masks; it is then judged on tasks from the
evaluation characters, each with a head of its own that is fitted to the task's five support images. The paper shows
curves of validation loss and prints no number.

    parley reproduce fedbio-omniglot --data DIR      DIR/omniglot has omniglot_28x28_u8.npy.xz
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from parley.client import Federation
from parley.local import LocalFederation
from parley.numerics.few_shot import sample_task
from parley.numerics.storm import Vector
from parley.numerics.streams import stream
from parley.party.fedbio.hyper_representation import HyperRepresentation, load_omniglot
from parley.services.party.checkpoints import Store

PARTIES = ("london", "cairo", "delhi", "kyoto", "lima")
BACKGROUND = 964
"""Characters of the alphabets to learn from; the others are new to the backbone."""
WAYS, SHOTS, QUERIES, FILTERS = 5, 1, 15, 16
NEW_TASKS, HEAD_STEPS = 100, 200
METHODS: dict[str, dict[str, Any]] = {
    "FedBiO-Local": {"accelerated": False},
    "FedBiOAcc-Local": {"accelerated": True},
}


class DataMissing(FileNotFoundError):
    """The experiment's data set is not where it was looked for."""


def run(quick: bool, data: Path | None, seed: int = 0) -> list[dict[str, Any]]:
    """Error on new tasks with the backbone as drawn and as learned by each method."""
    path = (data or Path(os.environ.get("PARLEY_DATA", "../shared/data"))) / "omniglot" / "omniglot_28x28_u8.npy.xz"
    if not path.exists():
        raise DataMissing(f"{path} is not there: name the folder that has omniglot/{path.name} with --data")
    images = load_omniglot(path)
    judge = _new_tasks(images[BACKGROUND:])
    drawn = judge.initial_upper(stream(seed, "fedbio/initial"))
    rows = [_row("backbone as drawn", "error on new tasks", _error(judge, drawn))]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        tables = _deal(images[:BACKGROUND], folder)
        with LocalFederation(folder / "federation", tables, {}, ready_seconds=300) as local, local.connect() as client:
            for method, settings in METHODS.items():
                metrics, backbone = _learn(client, folder / "federation", settings, quick, seed)
                rows += [
                    _row(method, "error on new tasks", _error(judge, backbone)),
                    _row(method, "validation error", metrics["validation error"]),
                    _row(method, "bytes", metrics["bytes"]),
                ]
    return rows


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw the errors on new tasks."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = [row for row in rows if row["metric"] == "error on new tasks"]
    figure, axes = pyplot.subplots(figsize=(6, 3.5), layout="constrained")
    bars = axes.bar([row["case"] for row in shown], [row["ours"] for row in shown])
    axes.bar_label(bars, fmt="%.3f")
    axes.axhline(1 - 1 / WAYS, color="grey", linewidth=1, linestyle="--")
    axes.set(ylabel=f"error on new {WAYS}-way {SHOTS}-shot tasks", title="Omniglot: dashed is guessing")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _row(case: str, metric: str, ours: float) -> dict[str, Any]:
    return {"case": case, "metric": metric, "ours": ours, "paper": None}


def _deal(images: NDArray[np.uint8], folder: Path) -> dict[str, dict[str, Any]]:
    """Write each party's characters, in turn."""
    tables = {}
    for m, party in enumerate(PARTIES):
        own = images[m :: len(PARTIES)]
        labels = np.repeat(np.arange(len(own)), own.shape[1])
        path = folder / f"{party}.npz"
        ids = np.array([f"{row:06d}" for row in range(len(labels))])
        np.savez_compressed(path, x=own.reshape(len(labels), -1).astype(np.float32), label=labels, ids=ids)
        tables[party] = {"characters": {"path": str(path), "label": "label"}}
    return tables


def _learn(
    client: Federation, folder: Path, settings: Mapping[str, Any], quick: bool, seed: int
) -> tuple[Mapping[str, float], Vector]:
    spec = {
        "name": "omniglot",
        "seed": seed,
        "table": "characters",
        "dtype": "float64",
        "parties": list(PARTIES),
        "train": {
            "algorithm": "fedbio",
            "rounds": 15 if quick else 100,
            "task": {
                "kind": "hyper_representation",
                "ways": WAYS,
                "shots": SHOTS,
                "queries": 5 if quick else QUERIES,
                "tasks": 8 if quick else 32,
                "filters": FILTERS,
            },
            "batch": 8,
            "checked_batch": 8,
            **settings,
        },
        "evaluate_every": 5,
        "checkpoint_every": 0,
        "round_seconds": 300,
    }
    run = client.start(yaml.safe_dump(spec))
    metrics = run.result()
    print(f"{settings}: {metrics}", flush=True)
    model = Store(folder / "state" / PARTIES[0]).load_model(run.run_id)
    return metrics, np.asarray(model["backbone"].numpy(), dtype=np.float64)


def _new_tasks(images: NDArray[np.uint8]) -> HyperRepresentation:
    generator = np.random.default_rng(1)
    tasks = [
        sample_task(images, ways=WAYS, shots=SHOTS, queries=QUERIES, generator=generator) for _ in range(NEW_TASKS)
    ]
    return HyperRepresentation(tasks, WAYS, FILTERS)


def _error(judge: HyperRepresentation, backbone: Vector) -> float:
    """Share of query images that heads fitted to the support images name wrongly."""
    import torch

    rows, x = torch.arange(len(judge.tasks)), torch.from_numpy(backbone)
    y = torch.zeros(judge.lower_size, dtype=torch.float64, requires_grad=True)
    for _ in range(HEAD_STEPS):  # γ = 1 is stable whatever the backbone
        (slope,) = torch.autograd.grad(judge.lower_loss(x, y, rows), y)
        y = (y - slope).detach().requires_grad_()
    measures = judge.measure(backbone, y.detach().numpy())
    return measures.errors / measures.rows
