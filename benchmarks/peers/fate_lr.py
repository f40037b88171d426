"""A vertical logistic regression by FATE (pyfate 2.2): guest with labels, host, and arbiter, each a process.

Runs in a virtualenv of its own. Not like ours: gradients are summed under Paillier encryption of 1024 bits, which an
arbiter decrypts; the logistic loss is replaced by its Taylor polynomial of second degree, since only sums and products
with known numbers can be had of encrypted values; no TLS; FATE's own launcher for one machine.
"""

import argparse
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from fate.arch.dataframe import PandasReader
from fate.arch.launchers.multiprocess_launcher import launch
from fate.ml.glm import CoordinatedLRModuleArbiter, CoordinatedLRModuleGuest, CoordinatedLRModuleHost
from sklearn.datasets import load_breast_cancer

PARTIES = ("guest:9999", "host:10000", "arbiter:10001")
FOR_SPEED = {
    "epochs": 2,
    "batch_size": 256,
    "optimizer_param": {"method": "sgd", "penalty": "l2", "alpha": 1e-3, "optimizer_params": {"lr": 0.3}},
    "learning_rate_param": {"method": "constant", "scheduler_params": {"factor": 1.0}},
    "init_param": {"method": "zeros", "fit_intercept": True},
}
"""Two rounds over breast cancer."""
STOP = {"early_stop": "weight_diff", "tol": 1e-12}

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Task:
    """What is trained on what."""

    features: Array
    labels: Array
    trained: Array
    """Rows that are trained on."""
    test: Array
    """Rows that are scored."""
    guest: int
    """Columns of the guest: the first ones."""
    settings: dict[str, Any]
    """Of FATE's modules; `early_stop` and `tol` are the arbiter's."""


def task() -> Task:
    """What this process and those that the launcher spawns are told; without a file, breast cancer in halves."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--task", type=Path, help="an .npz file with the fields of Task, settings as JSON")
    path = parser.parse_known_args()[0].task
    if path is not None:
        content = np.load(path)
        arrays = {name: content[name] for name in ("features", "labels", "trained", "test")}
        return Task(**arrays, guest=int(content["guest"]), settings=json.loads(str(content["settings"])))
    features, labels = load_breast_cancer(return_X_y=True)
    features = (features - features.mean(axis=0)) / features.std(axis=0)
    rows = np.arange(len(labels))
    return Task(features, labels, rows, rows, features.shape[1] // 2, FOR_SPEED)


def train(context: Any) -> None:
    """One party's part; the guest prints steps per second, accuracy, and the scores of the rows that are scored."""
    given = task()
    common = {name: value for name, value in given.settings.items() if name not in STOP}
    stop = {name: given.settings.get(name, value) for name, value in STOP.items()}
    context.cipher.set_phe(context.device, {"kind": "paillier", "key_length": 1024})
    if not (context.is_on_guest or context.is_on_host):
        del common["init_param"]
        CoordinatedLRModuleArbiter(**stop, **common).fit(context)
        return
    trained, test = table(context, given, given.trained), table(context, given, given.test)
    model = (CoordinatedLRModuleGuest if context.is_on_guest else CoordinatedLRModuleHost)(**common)
    began = time.perf_counter()
    model.fit(context, trained)
    seconds = time.perf_counter() - began
    predicted = model.predict(context, test)
    if context.is_on_guest:
        scores = predicted.as_pd_df().astype({"sample_id": int}).set_index("sample_id").loc[given.test]
        accuracy = float(np.mean(scores["predict_result"].astype(int) == scores["label"].astype(int)))
        epochs = model.estimator.end_epoch + model.estimator.is_converged  # it counts from 0 if it ends early
        steps = epochs * -(-len(given.trained) // common["batch_size"])
        figures = {"rounds_per_second": steps / seconds, "accuracy": accuracy, "steps": steps}
        print(json.dumps(figures | {"scores": scores["predict_score"].astype(float).tolist()}), flush=True)


def table(context: Any, given: Task, rows: Array) -> Any:
    """These rows of this party's columns."""
    first = context.is_on_guest
    columns = given.features[rows, : given.guest] if first else given.features[rows, given.guest :]
    names = [f"{'guest' if first else 'host'}_{column}" for column in range(columns.shape[1])]
    identities = [str(row) for row in rows]
    content = pd.DataFrame({"sample_id": identities, "id": identities}).join(pd.DataFrame(columns, columns=names))
    kind = {"sample_id_name": "sample_id", "match_id_name": "id", "dtype": "float64"}
    if first:
        content, kind = content.assign(label=given.labels[rows]), kind | {"label_name": "label"}
    return PandasReader(**kind).to_frame(context, content)


if __name__ == "__main__":
    sys.argv += ["--parties", *PARTIES, "--log_level", "ERROR"]
    launch(train)
