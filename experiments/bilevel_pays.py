"""bilevel-pays: what the second level brings beside plain split learning of the same model, and where nothing.

BAMBI (the paper), Eq. 1 and 2, on scikit-learn's digits at three parties, each with a third of every image; exact
labels. Real processes, mutual TLS, pairwise masks. Each seed draws the order of the rows and which labels are wrong.

    joint, bilevel           45 % of the lower labels are those of the next digit; 60 rows, the upper ones, are right.
                             `bilevel` learns a weight for each lower row (`SampleWeights`) on the upper rows; `joint`
                             is one level, on the rows of both
    clean rows alone         one level on the 60 right rows and nothing else
    joint, right labels      all labels are right, the upper level has rows of its own, and a network learns: here the
    bilevel, right labels    second level brings nothing

One level (both `joint` and the clean rows alone) gets the best of several γ, chosen on the held-out rows themselves;
`bilevel` has one.

    parley reproduce bilevel-pays [--quick] [--json FILE] [--plot FILE]
"""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from parley.client import Federation
from parley.experiments.vertical_services import Row, figures, plot_accuracy, trained, vertical_services

Array = NDArray[Any]

PARTIES = ("bank", "shop", "telco")
WRONG = 0.45
"""How many lower labels are those of the next digit."""
TRAINED, RIGHT = 1347, 60
"""How many rows are trained on; the last ones of them are known to be right."""
OWN_ROWS = {"lower": "0:1078", "upper": "1078:1437", "test": "1437:1797"}
NETWORK = {"kind": "mlp", "hidden": [64], "out": 16}
TWO_LEVELS = {
    "regularisation": 0.01,
    "model": NETWORK,
    "upper": {"steps": 22, "batch": None, "optimiser": {"kind": "adam", "step": 0.03, "decay_from": 0.3}},
    "lower": {"solver": "newton", "batch": 700, "warmup_steps": 2},
    "implicit": {"rounds": 1, "newton_rounds": 1},
}
ONE_LEVEL = {
    "problem": "joint",
    "regularisation": 0.01,
    "model": NETWORK,
    "upper": {"steps": 110, "batch": 256, "optimiser": {"kind": "adam", "step": 0.01, "decay_from": 0.3}},
}
LINEAR = {"problem": "joint", "model": {"kind": "identity"}, "upper": {"steps": 300, "batch": 256}}
WEIGHTS = {
    "problem": "own",
    "own": {
        "label_side": {"path": "parley.numerics.problems.sample_weights:SampleWeights", "options": {"start": 0.5}},
        "optimiser": {"kind": "adam", "step": 0.5},
    },
    "regularisation": 0.03,
    "upper": {"steps": 30, "batch": None},
    "lower": {"solver": "newton", "steps": 2, "warmup_steps": 3},
}
METRICS = ("accuracy", "rounds")
GAMMAS = (1e-4, 0.01, 0.1, 1.0, 3.0)
"""What one level is tried with; the quick setting takes the second and the third."""


def digits(seed: int, *, wrong: bool) -> tuple[list[Array], Array]:
    """Every party's columns and the classes, in an order for each seed."""
    generator, data = np.random.default_rng(seed), load_digits()
    order = generator.permutation(len(data.target))
    scaled = (data.data - data.data.mean(axis=0)) / np.maximum(data.data.std(axis=0), 1e-6)
    blocks = [part[order].astype(np.float32) for part in np.array_split(scaled, len(PARTIES), axis=1)]
    classes = data.target[order].astype(np.int64)
    if wrong:
        shifted = generator.random(len(classes)) < WRONG
        shifted[TRAINED - RIGHT :] = False
        classes = (classes + shifted) % 10
    return blocks, classes


def write_digits(seed: int, wrong: bool, folder: Path) -> None:
    """A file for each party, and the labels."""
    blocks, classes = digits(seed, wrong=wrong)
    folder.mkdir(parents=True)
    ids = [f"{row:04d}" for row in range(len(classes))]
    for name, block in zip(PARTIES, blocks, strict=True):
        columns = {f"{name}{n}": column for n, column in enumerate(block.T)}
        pa.parquet.write_table(pa.table({"id": ids, **columns}), folder / f"{name}.parquet")
    pa.parquet.write_table(pa.table({"id": ids, "label": [str(one) for one in classes]}), folder / "labels.parquet")


def run(quick: bool, data: Path | None = None, seed: int = 0) -> list[Row]:  # noqa: ARG001 (comes with scikit-learn)
    """Accuracy on held-out rows and rounds; `quick` leaves the right labels out, and tries two γ."""
    right, test = f"{TRAINED - RIGHT}:{TRAINED}", f"{TRAINED}:1797"
    both = {"lower": f"0:{TRAINED - RIGHT}", "upper": right, "test": test}
    gammas = GAMMAS[1:3] if quick else GAMMAS
    with vertical_services(PARTIES, partial(write_digits, seed, True)) as client:
        rows = _best(client, "joint", both, seed, gammas)
        rows += figures("bilevel", trained(client, PARTIES, WEIGHTS, seed=seed, split=both), *METRICS)
        alone = {"lower": right, "upper": "lower", "test": test}
        rows += _best(client, "clean rows alone", alone, seed, gammas)
    if quick:
        return rows
    with vertical_services(PARTIES, partial(write_digits, seed, False)) as client:
        for case, train in (("joint, right labels", ONE_LEVEL), ("bilevel, right labels", TWO_LEVELS)):
            rows += figures(case, trained(client, PARTIES, train, seed=seed, split=OWN_ROWS), *METRICS)
    return rows


def _best(client: Federation, case: str, split: dict[str, str], seed: int, gammas: tuple[float, ...]) -> list[Row]:
    """One level, with the γ that does best on the held-out rows."""
    tried = [
        figures(case, trained(client, PARTIES, LINEAR | {"regularisation": gamma}, seed=seed, split=split), *METRICS)
        for gamma in gammas
    ]
    return max(tried, key=lambda rows: rows[0]["ours"])


def plot(rows: list[Row], path: Path) -> None:
    """Accuracy of each case, and the rounds that it took."""
    plot_accuracy(rows, path, "rounds")
