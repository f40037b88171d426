"""The runs that are disturbed: every algorithm, with every way of summing and every kind of label privacy."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet
import yaml
from sklearn.linear_model import LogisticRegression

from parley.splitting import split_dataset

PARTIES = ("bank", "shop", "telco")
ROWS = 300
CLASSES = [str(label) for label in range(10)]
REGULARISATION = 1e-2
TARGET = 1e-4
"""Sub-optimality at which an asynchronous run ends: what such runs have in common, whatever happened to them."""
PROMPT = {"wait_seconds": 90, "round_seconds": 20}


def make_tables(data: Path) -> None:
    """Write every party's tables, unless they are there."""
    if data.exists():
        return
    split_dataset("digits", PARTIES, data / "columns", limit=ROWS)
    split_dataset("breast_cancer", PARTIES, data / "cancer", limit=ROWS, standardise=True)
    for seed, (name, source) in enumerate(
        (("records", "digits"), ("checked", "digits"), ("patients", "breast_cancer"))
    ):
        split_dataset(source, PARTIES, data / name, limit=ROWS, rows=True, seed=seed, standardise=source != "digits")
        for party in PARTIES:
            _add_labels(data / name / f"{party}.parquet", data / name / f"{party}.labels.parquet")


def tables_of(data: Path, party: str) -> dict[str, dict[str, Any]]:
    """A party's tables, as its configuration names them."""
    own = {
        kind: {"path": data / kind / f"{party}.parquet", "label": "label"}
        for kind in ("cancer", "records", "checked", "patients")
    }
    own["cancer"]["label_path"] = str((data / "cancer" / "labels.parquet").resolve())
    return own | {"train": {"path": data / "columns" / f"{party}.parquet"}}


def labels_of(data: Path) -> dict[str, dict[str, Any]]:
    """The coordinator's labels."""
    return {
        name: {"path": data / kind / "labels.parquet", "budget": {"epsilon": 1e6}}
        for name, kind in (("train", "columns"), ("cancer", "cancer"))
    }


def _add_labels(features: Path, labels: Path) -> None:
    """One file with features and labels, as a party with rows of its own has it."""
    joined = pyarrow.parquet.read_table(features).join(pyarrow.parquet.read_table(labels), keys="id").sort_by("id")
    pyarrow.parquet.write_table(joined, features)


def _bambi(hypergradient: str, solver: str, aggregation: str, mechanism: str, steps: int) -> dict[str, Any]:
    return {
        "train": {
            "algorithm": "bambi",
            "hypergradient": hypergradient,
            "model": {"kind": "mlp", "hidden": [8], "out": 4},
            "upper": {"steps": steps, "batch": 32, "optimiser": {"kind": "adam", "step": 0.01}},
            "lower": {"solver": solver, "steps": 2, "batch": 64}
            | ({"optimiser": {"step": 0.1}} if solver == "sgd" else {}),
            "implicit": {"rounds": 3, "newton_rounds": 3},
            "zeroth_order": {"directions": 2},
        },
        "privacy": {"aggregation": {"kind": aggregation}, "labels": {"mechanism": mechanism, "epsilon": 2}},
        "evaluate_every": 7,
        "checkpoint_every": 5,
    }


def _fedbio(aggregation: str, steps: int) -> dict[str, Any]:
    return {
        "table": "records",
        "train": {
            "algorithm": "fedbio",
            "rounds": steps,
            "batch": 32,
            "checked_batch": 32,
            "task": {"kind": "data_cleaning", "classes": CLASSES, "checked": "checked"},
        },
        "privacy": {"aggregation": {"kind": aggregation}},
        "evaluate_every": 0,
        "checkpoint_every": 5,
    }


def _asysqn(aggregation: str, labels: dict[str, Any] | None, **train: Any) -> dict[str, Any]:
    return {
        "table": "cancer",
        "split": {"lower": "0:240", "upper": "lower", "test": "240:300"},
        "train": {"algorithm": "asysqn", "batch": 64, "regularisation": REGULARISATION, **train},
        "privacy": {"aggregation": {"kind": aggregation}} | ({"labels": labels} if labels else {}),
        "evaluate_every": 10,
        "checkpoint_every": 10,
    }


def _decentralised(aggregation: str, **train: Any) -> dict[str, Any]:
    return {
        "dtype": "float64",
        "table": "patients",
        "split": {"lower": "0:48", "upper": "48:96", "test": 0},
        "train": train,
        "privacy": {"aggregation": {"kind": aggregation}},
        "evaluate_every": 1,
    }


CASES: dict[str, dict[str, Any]] = {
    "implicit, pairwise, once": _bambi("implicit", "newton", "pairwise", "once", 16),
    "zeroth order, two trees, per step": _bambi("zeroth_order", "sgd", "two_tree", "per_step", 30),
    "implicit, two trees, off": _bambi("implicit", "newton", "two_tree", "off", 16),
    "zeroth order, pairwise, per step": _bambi("zeroth_order", "sgd", "pairwise", "per_step", 30),
    "fedbio, pairwise": _fedbio("pairwise", 30),
    "asysqn, synchronous, pairwise, once": _asysqn(
        "pairwise", {"mechanism": "once", "epsilon": 3}, schedule="synchronous", steps=60, labels_at="coordinator"
    ),
    "asysqn, synchronous, two trees": _asysqn("two_tree", None, schedule="synchronous", estimator="saga", steps=60),
    "hgp": _decentralised(
        "pairwise",
        algorithm="hgp",
        task={"kind": "regularisation", "classes": ["0", "1"]},
        inner={"steps": 40, "learning_rate": 0.2},
        hyper={"rounds": 10, "push_steps": 3, "step_size": 0.1},
        outer={"steps": 4},
        stretch=20,
    )
    | {"checkpoint_every": 1},
    "ldp-dsbo": _decentralised(
        "pairwise",
        algorithm="ldp_dsbo",
        classes=["0", "1"],
        epsilon=100,
        iterations=12,
        batch=4,
        weight=0.3,
        noise={"sigma": 1.0},
        stretch=4,
    )
    | {"checkpoint_every": 4},
}
BAMBI_CASES = [name for name, case in CASES.items() if case["train"]["algorithm"] == "bambi"]
LONG = {*BAMBI_CASES, "fedbio, pairwise"}
"""Cases whose runs take several times as long as the others'."""
ASYNCHRONOUS = "asysqn, asynchronous, two trees"
"""Ends with the same sub-optimality, not with the same bits: the order of its messages is nobody's."""


def asynchronous_case(data: Path) -> dict[str, Any]:
    """An asynchronous run that ends at its target, which needs the optimum of the tables in `data`."""
    blocks = [pyarrow.parquet.read_table(data / "cancer" / f"{party}.parquet").drop(["id"]) for party in PARTIES]
    features = np.stack([column.to_numpy() for block in blocks for column in block.columns], axis=1)[:240]
    labels = pyarrow.parquet.read_table(data / "cancer" / "labels.parquet")["label"].to_numpy()[:240].astype(int)
    penalty = 1 / (len(features) * REGULARISATION)
    fit = LogisticRegression(C=penalty, fit_intercept=False, tol=1e-12, max_iter=10_000).fit(features, labels)
    weights, signs = fit.coef_[0], np.where(labels == 1, 1.0, -1.0)
    loss = np.logaddexp(0, -signs * (features @ weights)).mean() + REGULARISATION / 2 * weights @ weights
    return _asysqn("two_tree", None, steps=100_000, snapshot_every=8, target=TARGET, optimum=float(loss)) | {
        "checkpoint_every": 40
    }


def spec_of(case: str, **changes: Any) -> str:
    """The spec of a case as YAML."""
    return spec_text(CASES[case], **changes)


def spec_text(content: dict[str, Any], **changes: Any) -> str:
    """A spec as YAML, with what all cases have in common."""
    return yaml.safe_dump({"name": "fault", "seed": 5, "parties": list(PARTIES), **PROMPT, **content, **changes})
