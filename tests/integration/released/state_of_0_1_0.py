"""Make `0.1.0-state.tar.xz`: what a coordinator and three parties of 0.1.0 left, with runs that had ended and not.

Run it with the wheel of 0.1.0, in an empty folder: it uses that version's own names.

    git worktree add /tmp/released 548d74a && pip wheel --no-deps --wheel-dir /tmp/wheels /tmp/released
    python state_of_0_1_0.py
"""

import json
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path

import numpy as np
import yaml

from parley.local import LocalFederation

PARTIES = ("bank", "shop", "telco")
ROWS = 150
HERE = Path.cwd()


def write_tables():
    """Columns of the same rows for all (`columns`), and rows of the same columns with labels (`rows`)."""
    (HERE / "data").mkdir()
    rule = np.random.default_rng(9).standard_normal(6)
    features = np.random.default_rng(3).standard_normal((ROWS, 6)).round(3)
    labels = (features @ rule > 0).astype(int)
    lines = [f"{row},{label}" for row, label in enumerate(labels)]
    (HERE / "data" / "labels.csv").write_text("\n".join(["id,label", *lines]) + "\n")
    for member, party in enumerate(PARTIES):
        own = features[:, 2 * member : 2 * member + 2]
        lines = [f"{row},{','.join(map(str, values))}" for row, values in enumerate(own)]
        (HERE / "data" / f"{party}-columns.csv").write_text("\n".join(["id,a,b", *lines]) + "\n")
        many = np.random.default_rng(20 + member).standard_normal((ROWS, 6)).round(3) * 0.1
        lines = [
            f"{member}-{row},{','.join(map(str, values.round(4)))},{int(values @ rule > 0)}"
            for row, values in enumerate(many)
        ]
        (HERE / "data" / f"{party}-rows.csv").write_text("\n".join(["id,a,b,c,d,e,f,label", *lines]) + "\n")


def spec(name, table, train, **sections):
    return yaml.safe_dump(
        {"name": name, "seed": 3, "table": table, "parties": list(PARTIES), "train": train, "checkpoint_every": 2}
        | sections
    )


def bambi(steps):
    return {
        "algorithm": "bambi",
        "regularisation": 0.001,
        "model": {"kind": "mlp", "hidden": [3], "out": 2},
        "upper": {"steps": steps, "batch": 16, "optimiser": {"kind": "adam", "step": 0.01}},
        "lower": {"steps": 1, "batch": 16},
        "implicit": {"rounds": 2, "newton_rounds": 2},
    }


def asysqn(steps):
    settings = {"algorithm": "asysqn", "labels_at": "coordinator", "schedule": "synchronous", "estimator": "saga"}
    return settings | {"steps": steps, "batch": 16, "regularisation": 0.001}


def fedbio(rounds):
    task = {"kind": "data_cleaning", "classes": ["0", "1"], "checked": 0.2}
    return {"algorithm": "fedbio", "task": task, "rounds": rounds, "local_steps": 2}


def ldp_dsbo(iterations):
    settings = {"algorithm": "ldp_dsbo", "classes": ["0", "1"], "epsilon": 60, "iterations": iterations, "batch": 5}
    return settings | {"weight": 0.3, "noise": {"sigma": 2.0}}


ONCE = {"labels": {"mechanism": "once", "epsilon": 5}}
ENDED = {
    "bambi": spec("ended-bambi", "columns", bambi(4), privacy=ONCE, evaluate_every=2),
    "asysqn": spec("ended-asysqn", "columns", asysqn(8), privacy=ONCE | {"aggregation": {"kind": "pairwise"}}),
    "fedbio": spec("ended-fedbio", "rows", fedbio(60)),
    "ldp_dsbo": spec("ended-ldp", "rows", ldp_dsbo(4), dtype="float64", split={"lower": 0.5, "upper": 0.5, "test": 0}),
}
STOPPED = {
    "bambi": spec("stopped-bambi", "columns", bambi(400), privacy=ONCE, evaluate_every=2),
    "asysqn": spec("stopped-asysqn", "columns", asysqn(4000), privacy=ONCE | {"aggregation": {"kind": "pairwise"}}),
    "fedbio": spec("stopped-fedbio", "rows", fedbio(60)),
}


def main():
    write_tables()
    tables = {
        party: {
            "columns": {"path": str(HERE / "data" / f"{party}-columns.csv")},
            "rows": {"path": str(HERE / "data" / f"{party}-rows.csv"), "label": "label"},
        }
        for party in PARTIES
    }
    labels = {"columns": {"path": str(HERE / "data" / "labels.csv")}}
    local = LocalFederation(HERE / "federation", tables, labels, policy={"epsilon_budget": 100.0})
    found = {}
    with local, local.connect() as client:
        for algorithm, text in ENDED.items():
            run = client.start(text, request_id=f"ended-{algorithm}")
            found[algorithm] = {"run": run.run_id, "metrics": run.result()}
        for algorithm in ("bambi", "asysqn"):
            predicted = client.run(found[algorithm]["run"]).predict()
            scores = zip(predicted.ids, predicted.scores.tolist(), strict=True)
            found[algorithm]["predicted"] = dict(list(scores)[:20])
        for algorithm, text in STOPPED.items():
            run = client.start(text, request_id=f"stopped-{algorithm}")
            next(event for event in run.watch() if event.step >= 4)
            found[f"stopped {algorithm}"] = {"run": run.run_id}
        for name in ("coordinator", *PARTIES):
            local.kill(name)
    for database in HERE.glob("federation/state/*/*.db"):
        with closing(sqlite3.connect(database)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # the same content in fewer bytes
    (HERE / "found.json").write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    with tarfile.open("0.1.0-state.tar.xz", "w:xz") as archive:
        for part in ("data", "found.json", "federation/state"):
            archive.add(HERE / part, part, filter=lambda member: None if member.name.endswith(".png") else member)


if __name__ == "__main__":
    main()
