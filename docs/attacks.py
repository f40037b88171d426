"""What attacks recover with and without each protection: mounts them, and writes docs/attacks.md.

python docs/attacks.py         about a minute
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from parley.attacks.findings import MEANINGS, Finding
from parley.attacks.metric_releases import read_off_metrics
from parley.attacks.stand_in import StandIn
from parley.attacks.suite import ATTACKS, attack, subject_of
from parley.privacy.evaluations import EvaluationPolicy
from parley.spec.parsing import parse_spec

PAGE = Path(__file__).with_suffix(".md")
LINEAR = {
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
EMBEDDED = LINEAR | {
    "train": {"algorithm": "bambi", "model": {"kind": "mlp", "hidden": [16], "out": 8}, "upper": {"steps": 6}}
}
AVERAGED = {
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


@dataclass(frozen=True)
class Case:
    """One setting under one attack."""

    setting: str
    names: tuple[str, ...]
    spec: dict[str, object]


def changed(spec: dict[str, object], section: str, **fields: object) -> dict[str, object]:
    """A spec with other fields in one of its sections."""
    own = spec.get(section, {})
    assert isinstance(own, dict)  # noqa: S101 (of the specs above)
    return {**spec, section: {**own, **fields}}


def cases() -> list[Case]:
    """Every protection, without it and with it."""
    labels = ("labels", "label-averaging")
    off: dict[str, object] = {"mechanism": "off"}
    per_step: dict[str, object] = {"mechanism": "per_step", "epsilon": 0.5}
    noised = changed(LINEAR, "privacy", features={"kind": "once", "epsilon": 4, "bound": 3})
    return [
        Case("labels: off", labels, changed(LINEAR, "privacy", labels=off)),
        Case("labels: once, ε = 1", labels, LINEAR),
        Case("labels: per_step, ε = 0.5", ("labels",), changed(LINEAR, "privacy", labels=per_step)),
        Case("linear blocks, exact sums", ("columns", "differencing"), LINEAR),
        Case("linear blocks, features: once, ε = 4", ("columns", "differencing"), noised),
        Case("embeddings by a network, exact sums", ("columns", "differencing"), EMBEDDED),
        Case("batches of 1", ("inversion",), changed(AVERAGED, "train", batch=1, checked_batch=1)),
        Case("batches of 64", ("inversion",), AVERAGED),
        Case("a network on random labels", ("membership",), EMBEDDED),
        Case("any", ("errors",), LINEAR),
    ]


def rows() -> Iterator[tuple[str, Finding]]:
    """A line for each setting and attack."""
    for case in cases():
        for finding in attack(parse_spec(yaml.safe_dump(case.spec)), case.names):
            yield case.setting, finding
    policies = {
        "minimum_evaluation: 1": EvaluationPolicy(minimum_rows=1),
        "minimum_evaluation: 20": EvaluationPolicy(),
        "evaluation_epsilon: 0.5": EvaluationPolicy(epsilon=0.5),
    }
    with subject_of(parse_spec(yaml.safe_dump(LINEAR)), ATTACKS["metrics"].rows) as subject:
        assert isinstance(subject, StandIn)  # noqa: S101 (for readers)
        for setting, policy in policies.items():
            for finding in read_off_metrics(subject, policy):
                yield setting, finding


def page(found: list[tuple[str, Finding]]) -> str:
    """The page for findings."""
    lines = [
        "# Attacks",
        "",
        "Written by `python docs/attacks.py`, which mounts every attack of `parley attack` without and with the",
        "protection against it, on made-up tables of random features and labels: whatever is found was found in what",
        "crosses. Attack a spec of your own before it runs with `parley attack SPEC.YAML`; `parley doctor --strict",
        "SPEC.YAML` refuses one under which an attack succeeds. [The threat model](threat-model.md) says who can mount",
        "them.",
        "",
        "| setting | attack | by | recovered | guarantee | verdict |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {setting} | {f.attack} | {f.adversary} | {f.recovered} | {f.guarantee} | {f.verdict} |"
        for setting, f in found
    ]
    lines += ["", "| verdict | means |", "|---|---|"]
    lines += [f"| {verdict} | {meaning} |" for verdict, meaning in MEANINGS.items()]
    lines += ["", "| name | attack |", "|---|---|"]
    lines += [f"| `{name}` | {each.summary} |" for name, each in ATTACKS.items()]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    PAGE.write_text(page(list(rows())))
