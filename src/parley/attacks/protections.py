"""Every protection, without it and with it, under the attacks that it is against: the table of docs/attacks.md."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from parley.attacks.findings import Finding
from parley.attacks.metric_releases import read_off_metrics
from parley.attacks.suite import ATTACKS, attack, subject_of
from parley.privacy.evaluations import EvaluationPolicy
from parley.spec.parsing import parse_spec
from parley.spec.run import RunSpec

LINEAR: dict[str, Any] = {
    "name": "linear",
    "dtype": "float64",
    "table": "train",
    "parties": ["bank", "shop", "telco"],
    "split": {"lower": 0.8, "upper": "lower", "test": 0.2},
    "train": {
        "algorithm": "bambi",
        "problem": "hyper_parameters",
        "loss": "softmax",
        "upper": {"steps": 3, "batch": None},
    },
    "privacy": {"labels": {"mechanism": "once", "epsilon": 1}},
}
EMBEDDED: dict[str, Any] = LINEAR | {
    "train": {"algorithm": "bambi", "model": {"kind": "mlp", "hidden": [16], "out": 8}, "upper": {"steps": 6}}
}
STEPPED: dict[str, Any] = LINEAR | {
    "train": LINEAR["train"]
    | {
        "upper": {"steps": 1, "batch": None},
        "hypergradient": "zeroth_order",
        "lower": {"solver": "sgd", "warmup_steps": 8},
    }
}
MIXED: dict[str, Any] = {
    "name": "mixed",
    "parties": ["bank", "shop", "telco"],
    "train": {"algorithm": "glm", "family": "logistic"},
    "privacy": {"labels": {"mechanism": "once", "epsilon": 1}},
}
AVERAGED: dict[str, Any] = {
    "name": "averaged",
    "table": "records",
    "parties": ["north", "south", "west"],
    "train": {
        "algorithm": "fedbio",
        "accelerated": False,
        "rounds": 12,
        "local_steps": 1,
        "batch": 64,
        "checked_batch": 64,
        "task": {"kind": "data_cleaning", "classes": list("012345"), "checked": "checked"},
    },
}
MEMORISED: dict[str, Any] = AVERAGED | {
    "evaluate_every": 0,
    "train": AVERAGED["train"]
    | {
        "rounds": 60,
        "gamma": 3,
        "eta": 0.001,
        "batch": 40,
        "checked_batch": 40,
        "task": {"kind": "data_cleaning", "classes": list("012345"), "checked": 0.1},
    },
}
"""Few rows with random labels, which are learnt by heart."""


@dataclass(frozen=True)
class Case:
    """One setting under some attacks."""

    setting: str
    names: tuple[str, ...]
    spec: dict[str, Any]
    rows: int | None = None
    """Of the made-up tables, where it is not what each attack takes."""


def changed(spec: dict[str, Any], section: str, **fields: object) -> dict[str, Any]:
    """A spec with other fields in one of its sections."""
    return {**spec, section: {**spec.get(section, {}), **fields}}


def noised(spec: dict[str, Any], kind: str, epsilon: float) -> dict[str, Any]:
    """A spec whose rows, or whose sums, are noised."""
    more = {"step_bound": 3} if kind == "per_sum" else {}
    return changed(spec, "privacy", features={"kind": kind, "epsilon": epsilon, "bound": 3, **more})


def cases() -> list[Case]:
    """Every protection of a spec, without it and with it."""
    labels, columns = ("labels", "label-averaging"), ("columns", "differencing")
    off: dict[str, object] = {"mechanism": "off"}
    per_step: dict[str, object] = {"mechanism": "per_step", "epsilon": 0.5}
    private = changed(MEMORISED, "train", record_privacy={"epsilon": 1, "noise": 45, "clip": 4})
    return [
        Case("labels: off", labels, changed(LINEAR, "privacy", labels=off)),
        Case("labels: once, ε = 1", labels, LINEAR),
        Case("labels: per_step, ε = 0.5", ("labels",), changed(LINEAR, "privacy", labels=per_step)),
        Case("linear blocks, exact sums", columns, LINEAR),
        Case("linear blocks, features: once, ε = 4", columns, noised(LINEAR, "once", 4)),
        Case("linear blocks, features: per_sum, ε = 4", columns, noised(STEPPED, "per_sum", 4)),
        Case("mixtures of columns (GLM), exact sums", columns, MIXED),
        Case("mixtures of columns (GLM), features: once, ε = 4", columns, noised(MIXED, "once", 4)),
        Case("embeddings by a network, exact sums", columns, EMBEDDED),
        Case("embeddings by a network, features: once, ε = 4", columns, noised(EMBEDDED, "once", 4)),
        Case("batches of 1", ("inversion",), changed(AVERAGED, "train", batch=1, checked_batch=1)),
        Case("batches of 64", ("inversion",), AVERAGED),
        Case("averages over few rows", ("membership",), MEMORISED, rows=40),
        Case("averages over few rows, record_privacy: ε = 1", ("membership",), private, rows=40),
        Case("a network on random labels", ("membership",), EMBEDDED),
        Case("any", ("errors",), LINEAR),
    ]


POLICIES = {
    "minimum_evaluation: 1": EvaluationPolicy(minimum_rows=1),
    "minimum_evaluation: 20": EvaluationPolicy(),
    "evaluation_epsilon: 0.5": EvaluationPolicy(epsilon=0.5),
}
"""What the owner of labels may say of metrics."""


def attack_protections(*, quick: bool = False) -> Iterator[tuple[str, Finding]]:
    """Each setting with each finding under it; `quick` leaves out the attacks that train whole models."""
    for case in cases():
        names = tuple(name for name in case.names if ATTACKS[name].quick or not quick)
        for finding in attack(spec_of(case.spec), names, rows=case.rows) if names else ():
            yield case.setting, finding
    with subject_of(spec_of(LINEAR), ATTACKS["metrics"].rows) as subject:
        for setting, policy in POLICIES.items():
            for finding in read_off_metrics(subject, policy):
                yield setting, finding


def spec_of(fields: dict[str, Any]) -> RunSpec:
    """A spec of its fields."""
    return parse_spec(yaml.safe_dump(fields))
