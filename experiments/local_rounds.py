"""local-rounds: local rounds with the settings of a spec that says nothing, beside one exchange and `implicit`.

docs/papers/bambi.md, "Local rounds". Real processes, mutual TLS, pairwise masks; both levels have the same rows.

    digits    scikit-learn's digits at three parties; a fifth of the rows is held out by each seed
    mnist     the rows and networks of `bambi-mnist`: four parties with a strip of each image; left out without `data`
    stress    1500 rows, three columns at each of three parties, on which only the blocks together tell the class:
              z = a₁ − 2a₂ + 4a₃ but for scale and noise, class = argmax z; γ = 1e-3. Whoever knows z but for the noise
              reads 0.91 of the classes

`control` is one exchange: parties train alone, and their logits are added. Where it does as well, a task says nothing
about the rounds. `stress implicit` has the default settings of that mode.

    parley reproduce local-rounds [--data DIR] [--quick] [--json FILE] [--plot FILE]
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from parley.client import Federation
from parley.experiments.bambi_mnist import MODEL, PARTIES
from parley.experiments.vertical_services import (
    Row,
    figures,
    images_in,
    left_out,
    plot_accuracy,
    trained,
    vertical_services,
)
from parley.splitting import split_dataset

THREE = ("bank", "shop", "telco")
SMALL = {"kind": "mlp", "hidden": [64], "out": 16}
STRESS_ROWS, STRESS_NOISE = 1500, 0.2
SPLIT = {"lower": 0.8, "upper": "lower", "test": 0.2}
MNIST_SPLIT = {"lower": "0:50000", "upper": "lower", "test": "60000:70000"}
METRICS = ("accuracy", "rounds", "MB", "label releases")
ALONE = {"exchanges": 1, "epochs": 50}
MNIST_ALONE = {"exchanges": 1, "rows": 50000, "epochs": 10}
NOISY: dict[str, dict[str, Any]] = {
    "mnist local once eps=1": {"mechanism": "once", "epsilon": 1.0},
    "mnist local per_step eps0=1": {"mechanism": "per_step", "epsilon": 1.0, "kind": "randomised_response"},
}


def local(model: Mapping[str, Any], **settings: Any) -> dict[str, Any]:
    """The `train` section: a network, and whatever `settings` say of local rounds."""
    return {"hypergradient": "local", "model": dict(model), "local": settings}


def stress_task(seed: int = 0) -> tuple[list[np.ndarray[Any, Any]], np.ndarray[Any, Any]]:
    """Three blocks of unit scale, and the classes."""
    draw = np.random.default_rng(seed)
    z, second, third = draw.standard_normal((3, STRESS_ROWS, 3))
    first = z + 2 * second - 4 * third + STRESS_NOISE * draw.standard_normal(z.shape)
    return [block / block.std(axis=0) for block in (first, second, third)], z.argmax(axis=1)


def write_stress(folder: Path) -> None:
    """Three files of columns and one of classes."""
    blocks, classes = stress_task()
    folder.mkdir(parents=True)
    ids = [f"{row:04d}" for row in range(STRESS_ROWS)]
    for name, block in zip(THREE, blocks, strict=True):
        columns = {f"{name}{n}": column for n, column in enumerate(block.T)}
        pa.parquet.write_table(pa.table({"id": ids, **columns}), folder / f"{name}.parquet")
    pa.parquet.write_table(pa.table({"id": ids, "label": [str(one) for one in classes]}), folder / "labels.parquet")


def run(quick: bool, data: Path | None = None, seed: int = 0) -> list[Row]:
    """Accuracy on held-out rows and what it cost; `quick` leaves out the control and label privacy on MNIST."""
    rows: list[Row] = []
    with vertical_services(THREE, partial(split_dataset, "digits", THREE)) as client:
        for case, settings in (("digits local", {}), ("digits control", ALONE)):
            done = trained(client, THREE, local(SMALL, **settings), seed=seed, split=SPLIT)
            rows += figures(case, done, *METRICS)
    with vertical_services(THREE, write_stress) as client:
        for case, train in {
            "stress local": local(SMALL),
            "stress implicit": {"hypergradient": "implicit", "model": SMALL},
            "stress control": local(SMALL, **ALONE),
        }.items():
            done = trained(client, THREE, train | {"regularisation": 1e-3}, seed=seed, split=SPLIT)
            rows += figures(case, done, *METRICS)
    folder = images_in(data, "mnist")
    if folder is None:
        left_out("all cases of mnist", data, "mnist")
        return rows
    with vertical_services(PARTIES, partial(split_dataset, folder, PARTIES)) as client:
        return rows + _mnist(client, quick, seed)


def _mnist(client: Federation, quick: bool, seed: int) -> list[Row]:
    done = trained(client, PARTIES, local(MODEL), seed=seed, split=MNIST_SPLIT)
    rows = figures("mnist local", done, *METRICS)
    if quick:
        return rows
    done = trained(client, PARTIES, local(MODEL, **MNIST_ALONE), seed=seed, split=MNIST_SPLIT)
    rows += figures("mnist control", done, *METRICS)
    for case, labels in NOISY.items():
        done = trained(client, PARTIES, local(MODEL), seed=seed, split=MNIST_SPLIT, labels=labels)
        rows += figures(case, done, *METRICS, "total epsilon")
    return rows


def plot(rows: list[Row], path: Path) -> None:
    """Accuracy of each case, and the rounds that it took."""
    plot_accuracy(rows, path, "rounds")
