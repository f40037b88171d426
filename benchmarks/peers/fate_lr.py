"""A vertical logistic regression by FATE (pyfate 2.2): guest with labels, host, and arbiter, each a process.

Runs in a virtualenv of its own. Not like ours: gradients are summed under Paillier encryption of 1024 bits, which an
arbiter decrypts; no TLS; FATE's own launcher for one machine.
"""

import argparse
import json
import sys
import time
from typing import Any

import numpy as np
import pandas as pd
from fate.arch.dataframe import PandasReader
from fate.arch.launchers.multiprocess_launcher import launch
from fate.ml.glm import CoordinatedLRModuleArbiter, CoordinatedLRModuleGuest, CoordinatedLRModuleHost
from sklearn.datasets import load_breast_cancer

PARTIES = ("guest:9999", "host:10000", "arbiter:10001")
OPTIMISER = {"method": "sgd", "penalty": "l2", "alpha": 1e-3, "optimizer_params": {"lr": 0.3}}
CONSTANT = {"method": "constant", "scheduler_params": {"factor": 1.0}}


def settings() -> argparse.Namespace:
    """What this process and those that the launcher spawns are told."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=256)
    return parser.parse_known_args()[0]


def train(context: Any) -> None:
    """One party's part; the guest prints steps per second."""
    given, common = settings(), {"optimizer_param": OPTIMISER, "learning_rate_param": CONSTANT}
    common |= {"epochs": given.epochs, "batch_size": given.batch}
    context.cipher.set_phe(context.device, {"kind": "paillier", "key_length": 1024})
    if not (context.is_on_guest or context.is_on_host):
        CoordinatedLRModuleArbiter(early_stop="weight_diff", tol=1e-12, **common).fit(context)
        return
    features, labels = load_breast_cancer(return_X_y=True)
    features = (features - features.mean(axis=0)) / features.std(axis=0)
    half, first = features.shape[1] // 2, context.is_on_guest
    columns = features[:, :half] if first else features[:, half:]
    names = [f"{'guest' if first else 'host'}_{column}" for column in range(columns.shape[1])]
    identities = [str(row) for row in range(len(labels))]
    table = pd.DataFrame({"sample_id": identities, "id": identities}).join(pd.DataFrame(columns, columns=names))
    kind = {"sample_id_name": "sample_id", "match_id_name": "id", "dtype": "float64"}
    if first:
        table, kind = table.assign(label=labels), kind | {"label_name": "label"}
    frame = PandasReader(**kind).to_frame(context, table)
    start = {"method": "zeros", "fit_intercept": first}
    model = (CoordinatedLRModuleGuest if first else CoordinatedLRModuleHost)(init_param=start, **common)
    began = time.perf_counter()
    model.fit(context, frame)
    seconds = time.perf_counter() - began
    predicted = model.predict(context, frame)
    if first:
        scores = predicted.as_pd_df()
        accuracy = float(np.mean(scores["predict_result"].astype(int) == scores["label"].astype(int)))
        steps = given.epochs * -(-len(labels) // given.batch)
        print(json.dumps({"rounds_per_second": steps / seconds, "accuracy": accuracy}), flush=True)


if __name__ == "__main__":
    sys.argv += ["--parties", *PARTIES, "--log_level", "ERROR"]
    launch(train)
