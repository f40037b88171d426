"""Label-inference attacks on released gradients: what each mechanism gives away, against what its ε allows.

BAMBI (the paper), Lemma 3, Theorem 2 and Algorithms 2–3. Whoever sees an ε-DP release of a label that is uniform on C
classes guesses it with probability at most e^ε/(e^ε + C − 1), the cap. The adversary here knows everything but the
labels and the noise key: the logits, the mechanism with its parameters, and a tenth of the true labels.

The labels are drawn uniformly and the logits know nothing of them, so that a right guess beyond 1/C can only come from
what was released; real data would credit the attack with what the features say about the label. `data` is not used.

The attacks are those of `parley.attacks.labels`.

Two broken mechanisms are attacked too, to show that the attacks bite: the paper's Algorithm 3, and Algorithm 2 in the
order of float operations in which it is printed. Neither exists in the product.

    parley reproduce bambi-dp-attacks [--quick] [--json FILE] [--plot FILE]
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parley.attacks.labels import ATTACKS, View, cap
from parley.numerics.losses import Softmax
from parley.privacy.label_mechanisms import Kind, Schedule, choose_mechanism
from parley.privacy.label_vault import LabelPolicy, LabelVault
from parley.privacy.noise import KeyedNoise

Array = NDArray[Any]
Labels = NDArray[np.int64]
Row = dict[str, Any]

KEY = bytes(range(32))
"""Fixed, so that the table is the same every time; a label holder's key is random and secret."""
KNOWN_SHARE = 0.1


def float_replay_attack(released: Array, p: Array, epsilon: float) -> Labels:
    """Count, for each label, the 53-bit uniforms that reproduce the released float of Algorithm 2 to the last bit."""
    hits = []
    for label in (0, 1):
        noise = (p - label - released) * (1 if label else -1)
        nearest = np.rint(np.where(noise < 0, np.exp(noise * epsilon) / 2, 1 - np.exp(-noise * epsilon) / 2) * 2.0**53)
        count = np.zeros(p.shape)
        for shift in range(-40, 41):
            uniform = np.clip(nearest + shift, 1, 2.0**53 - 1) / 2.0**53
            again = paper_algorithm_2(np.full(p.shape, label), p, laplace(uniform, 1 / epsilon))
            count += again == released
        hits.append(count)
    return np.asarray(np.argmax(hits, axis=0))


def laplace(uniform: Array, scale: float) -> Array:
    """The textbook inverse of the Laplace distribution function."""
    centred = uniform - 0.5
    return np.asarray(-scale * np.sign(centred) * np.log(1 - 2 * np.abs(centred)))


def paper_algorithm_2(labels: Labels, p: Array, noise: Array) -> Array:
    """θ_b + u·(θ_b − θ_{1−b}) as printed: private in the reals, not in floats."""
    own, other = p - labels, p - (1 - labels)
    return np.asarray(own + noise * (own - other))


def paper_algorithm_3(labels: Labels, p: Array, noise: Array) -> Array:
    """θ_b + u·Σ_k θ_k as printed: the row stays on the line of its label whatever u is."""
    classes = p.shape[-1]
    return np.asarray(p - np.eye(classes)[labels] + noise[:, None] * (classes * p - 1))


def labels_and_logits(classes: int, records: int, releases: int, seed: int = 0) -> tuple[Labels, Array]:
    """Uniform labels and, apart from them, T×N×C logits in float32."""
    rng = np.random.default_rng([seed, classes, records])
    labels = rng.integers(0, classes, records)
    return labels, rng.normal(size=(releases, records, classes)).astype(np.float32)


def view_of_ours(policy: LabelPolicy, classes: int, records: int, releases: int) -> tuple[View, Labels]:
    """Release gradients through the product's own vault."""
    labels, logits = labels_and_logits(classes, records, releases)
    vault = LabelVault(labels, Softmax(classes), policy, KeyedNoise(KEY), "attack")
    loss = vault.loss_for_training()
    rows = np.arange(records)
    gradients = [loss.gradient(h, vault.target(t, rows)) * records for t, h in enumerate(logits)]
    mechanism = choose_mechanism(policy.schedule, classes, policy.epsilon, policy.kind)
    known = labels[: int(KNOWN_SHARE * records)]
    return View(np.stack(gradients), logits, mechanism, loss, known), labels


def view_of_algorithm_3(epsilon: float, classes: int, records: int) -> tuple[View, Labels]:
    """Release gradients as the paper prints it for several classes."""
    labels, logits = labels_and_logits(classes, records, 1)
    p = Softmax(classes).predict(logits[0])
    uniform = np.random.default_rng(7).uniform(1e-12, 1, records)
    gradients = paper_algorithm_3(labels, p, laplace(uniform, 1 / epsilon))[None]
    return View(gradients, logits, None, Softmax(classes), labels[: int(KNOWN_SHARE * records)]), labels


def accuracy(guesses: Labels, labels: Labels) -> float:
    """Share of right guesses among the records whose labels the adversary did not know."""
    start = int(KNOWN_SHARE * labels.size)
    return float((guesses[start:] == labels[start:]).mean())


@dataclass(frozen=True)
class Case:
    """One mechanism under attack."""

    name: str
    policy: LabelPolicy
    classes: int
    releases: int
    total_epsilon: float


def cases() -> list[Case]:
    """Every mechanism at C = 2, 3, 10, one release and ten."""
    found = [Case(f"off C={classes}", LabelPolicy("off"), classes, 1, math.inf) for classes in (2, 10)]
    kinds: list[tuple[Schedule, Kind, tuple[tuple[int, int], ...]]] = [
        ("once", "randomised_response", ((2, 1), (3, 1), (10, 1), (10, 10))),
        ("once", "unary_encoding", ((3, 1), (10, 1), (10, 10))),
        ("per_step", "laplace", ((2, 1), (3, 1), (10, 1), (10, 10))),
    ]
    for schedule, kind, shapes in kinds:
        for epsilon in (0.5, 1.0, 3.0):
            for classes, releases in shapes:
                policy = LabelPolicy(schedule, epsilon, kind)
                total = epsilon if schedule == "once" else releases * epsilon
                name = f"{schedule} {kind} ε={epsilon:g} C={classes} releases={releases}"
                found.append(Case(name, policy, classes, releases, total))
    return found


def run(quick: bool = False, data: Path | None = None) -> list[Row]:  # noqa: ARG001  (the module says why)
    """Attack every mechanism in every way; three rows for each pair."""
    records = 24_000 if quick else 100_000
    rows: list[Row] = []
    for case in cases():
        # recovering Laplace rows is a search, and they stay well below their cap: fewer records tell as much
        fewer = records // 4 if case.policy.kind == "laplace" else records
        view, labels = view_of_ours(case.policy, case.classes, fewer, case.releases)
        limit = cap(case.total_epsilon, case.classes)
        for name, attack in ATTACKS.items():
            rows += _rows(f"{case.name} × {name}", accuracy(attack(view, np.random.default_rng(1)), labels), limit)
    for epsilon in (0.1, 1.0):
        view, labels = view_of_algorithm_3(epsilon, 10, records)
        for name, attack in ATTACKS.items():
            score = accuracy(attack(view, np.random.default_rng(1)), labels)
            rows += _rows(f"paper's Algorithm 3 ε={epsilon:g} C=10 × {name}", score, cap(epsilon, 10))
        score = naive_float_accuracy(epsilon, records)
        rows += _rows(f"paper's Algorithm 2 in floats ε={epsilon:g} C=2 × replay", score, cap(epsilon, 2))
    return rows


def naive_float_accuracy(epsilon: float, records: int) -> float:
    """How often the bit-exact replay reads a label from Algorithm 2 as printed."""
    rng = np.random.default_rng(3)
    p = 1 / (1 + np.exp(-rng.normal(size=records)))
    labels = rng.integers(0, 2, records)
    uniform = rng.integers(1, 2**53, records) / 2.0**53
    released = paper_algorithm_2(labels, p, laplace(uniform, 1 / epsilon))
    return accuracy(float_replay_attack(released, p, epsilon), labels)


def plot(rows: list[Row], path: Path) -> None:
    """Draw attack accuracy against its cap; a sound mechanism stays on or below the diagonal."""
    from matplotlib.figure import Figure

    reached = {row["case"]: row["ours"] for row in rows if row["metric"] == "attack accuracy"}
    allowed = {row["case"]: row["ours"] for row in rows if row["metric"] == "cap"}
    figure = Figure(figsize=(6, 6), layout="constrained")
    axes = figure.subplots()
    styles = [
        ("once", "o", "tab:blue"),
        ("per_step", "s", "tab:green"),
        ("off", "v", "tab:grey"),
        ("paper", "x", "tab:red"),
    ]
    for prefix, marker, colour in styles:
        chosen = [case for case in reached if case.startswith(prefix)]
        axes.scatter(
            [allowed[case] for case in chosen],
            [reached[case] for case in chosen],
            marker=marker,
            color=colour,
            label={"paper": "the paper's, as printed"}.get(prefix, prefix),
        )
    axes.plot([0, 1], [0, 1], color="black", linewidth=1, label="cap")
    axes.set(xlabel="cap  e^ε / (e^ε + C − 1)", ylabel="attack accuracy", xlim=(0, 1.02), ylim=(0, 1.02))
    axes.legend()
    figure.savefig(path)


def _rows(case: str, score: float, limit: float) -> list[Row]:
    values = {"attack accuracy": score, "cap": limit, "excess over cap": score - limit}
    return [{"case": case, "metric": metric, "ours": value, "paper": None} for metric, value in values.items()]
