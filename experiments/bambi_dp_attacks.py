"""Label-inference attacks on released gradients: what each mechanism gives away, against what its ε allows.

BAMBI (the paper), Lemma 3, Theorem 2 and Algorithms 2–3. Whoever sees an ε-DP release of a label that is uniform on C
classes guesses it with probability at most e^ε/(e^ε + C − 1), the cap. The adversary here knows everything but the
labels and the noise key: the logits, the mechanism with its parameters, and a tenth of the true labels.

The labels are drawn uniformly and the logits know nothing of them, so that a right guess beyond 1/C can only come from
what was released; real data would credit the attack with what the features say about the label. `data` is not used.

    norm        the class whose own gradient has the released length
    sign        the class with the most negative entry
    clustering  k-means on the released rows, clusters named by the known tenth
    residual    the class whose line θ_k + u·Σ_j θ_j passes closest
    replay      recover ỹ to the last bit from the released floats, then take its likeliest class

Two broken mechanisms are attacked too, to show that the attacks bite: the paper's Algorithm 3, and Algorithm 2 in the
order of float operations in which it is printed. Neither exists in the product.

    parley reproduce bambi-dp-attacks [--quick] [--json FILE] [--plot FILE]
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans

from parley.numerics.losses import ForwardCorrectedBits, Loss, Softmax
from parley.privacy.label_mechanisms import (
    Kind,
    LabelMechanism,
    LaplaceRows,
    RandomisedLabels,
    Schedule,
    UnaryLabels,
    choose_mechanism,
)
from parley.privacy.label_vault import LabelPolicy, LabelVault
from parley.privacy.noise import GRID, KeyedNoise

Array = NDArray[Any]
Labels = NDArray[np.int64]
Row = dict[str, Any]

KEY = bytes(range(32))
"""Fixed, so that the table is the same every time; a label holder's key is random and secret."""
KNOWN_SHARE = 0.1


@dataclass(frozen=True)
class View:
    """What the adversary sees of N records over T releases."""

    gradients: Array
    """T×N×C, θ̃ of each sample (times the batch size)."""
    logits: Array
    """T×N×C, h."""
    mechanism: LabelMechanism | None
    """The noise and its parameters; none where it is not one of ours."""
    loss: Loss
    """The loss whose gradients these are."""
    known: Labels
    """True classes of the first tenth of the records."""

    @property
    def probabilities(self) -> Array:
        """p, T×N×C."""
        return Softmax(self.logits.shape[-1]).predict(self.logits)


Attack = Callable[[View, np.random.Generator], Labels]


def norm_attack(view: View, rng: np.random.Generator) -> Labels:  # noqa: ARG001
    """Guess the class whose own gradient p − e_k is as long as the released one."""
    p = view.probabilities
    squared = np.square(p).sum(axis=-1, keepdims=True) - 2 * p + 1
    released = np.linalg.norm(view.gradients, axis=-1, keepdims=True)
    return np.asarray(np.abs(np.sqrt(squared) - released).sum(axis=0).argmin(axis=-1))


def sign_attack(view: View, rng: np.random.Generator) -> Labels:  # noqa: ARG001
    """Guess the class whose entry is the most negative: without noise only the label's is below zero."""
    return np.asarray(view.gradients.sum(axis=0).argmin(axis=-1))


def clustering_attack(view: View, rng: np.random.Generator) -> Labels:
    """Cluster the released rows, less what the logits explain; name each cluster by the labels it is known to hold."""
    classes = view.gradients.shape[-1]
    rows = (view.gradients - view.probabilities).mean(axis=0)
    clusters = KMeans(classes, n_init=4, random_state=int(rng.integers(2**31))).fit_predict(rows)
    votes = np.zeros((classes, classes))
    np.add.at(votes, (clusters[: view.known.size], view.known), 1)
    return np.asarray(votes.argmax(axis=1)[clusters])


def residual_attack(view: View, rng: np.random.Generator) -> Labels:  # noqa: ARG001
    """Guess the class whose line θ_k + u·Σ_j θ_j, u any number, the released row is closest to."""
    p = view.probabilities.astype(np.float64)
    classes = p.shape[-1]
    along = classes * p - 1  # Σ_j θ_j
    length = np.linalg.norm(along, axis=-1, keepdims=True)
    along = np.divide(along, length, out=np.zeros_like(along), where=length > 1e-9)
    distances = []
    for k in range(classes):
        offset = view.gradients - p + np.eye(classes)[k]
        across = offset - along * (offset * along).sum(axis=-1, keepdims=True)
        distances.append(np.linalg.norm(across, axis=-1).sum(axis=0))
    return np.asarray(np.argmin(distances, axis=0))


def replay_attack(view: View, rng: np.random.Generator) -> Labels:
    """Recover each release's ỹ exactly from the released floats, and take the class of the largest likelihood."""
    if view.mechanism is None:
        return residual_attack(view, rng)
    scores = np.zeros(view.gradients.shape[1:])
    seen: list[Array] = []
    for gradients, logits in zip(view.gradients, view.logits, strict=True):
        rows = recovered_rows(view, gradients, logits)
        if any(np.array_equal(rows, earlier) for earlier in seen):
            continue  # the same draw again says nothing new
        seen.append(rows)
        scores += log_likelihoods(view.mechanism, rows)
    best = scores >= scores.max(axis=1, keepdims=True) - 1e-9
    return np.asarray((best * rng.random(best.shape)).argmax(axis=1))  # ties are broken by lot


ATTACKS: dict[str, Attack] = {
    "norm": norm_attack,
    "sign": sign_attack,
    "clustering": clustering_attack,
    "residual": residual_attack,
    "replay": replay_attack,
}


def recovered_rows(view: View, gradients: Array, logits: Array) -> Array:
    """Invert one release: the noisy rows ỹ from which its gradients were computed."""
    classes = logits.shape[-1]
    p = Softmax(classes).predict(logits).astype(np.float64)
    match view.mechanism:
        case LaplaceRows() if classes > 2:
            return _rows_on_the_grid(p, gradients, 8 * math.sqrt(classes * view.mechanism.mean_variance()))
        case LaplaceRows():
            return np.asarray(np.rint((p - gradients) * GRID) / GRID)  # ỹ_0 + ỹ_1 = 1
        case UnaryLabels():
            return _bits(view.loss, p, gradients)
        case _:
            candidates = [view.loss.gradient(logits, _tiled(k, logits)) * len(logits) for k in range(classes)]
            matches = [(candidate == gradients).all(axis=-1) for candidate in candidates]
            return np.asarray(np.eye(classes)[np.argmax(matches, axis=0)])


def log_likelihoods(mechanism: LabelMechanism, rows: Array) -> Array:
    """log P(ỹ | k) for each class k, up to a constant of the row."""
    match mechanism:
        case LaplaceRows():
            unit = mechanism.event.unit_epsilon
            if mechanism.classes == 2:
                return np.stack([-unit * np.abs(rows[:, 1] - k) for k in (0, 1)], axis=1)
            return np.asarray(-unit * (np.abs(rows - 1) - np.abs(rows)))
        case RandomisedLabels():
            return np.asarray(np.log(rows @ mechanism.transition))
        case UnaryLabels():
            q = mechanism.other_probability
            return np.where(rows > 0.5, math.log(0.5 / q), math.log(0.5 / (1 - q)))
        case _:
            return np.asarray(rows)


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


def cap(epsilon: float, classes: int) -> float:
    """The best guess that ε-DP leaves of a uniform label."""
    return 1 / (1 + (classes - 1) * math.exp(-epsilon))


def margin(level: float, records: int) -> float:
    """Four standard errors of a share: passed by chance once in 30 000 times."""
    return 4 * math.sqrt(max(level * (1 - level), 1 / records) / records)


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


def _rows_on_the_grid(p: Array, gradients: Array, reach: float) -> Array:
    """Find Σ_k ỹ_k on the grid such that p·Σ − θ̃ is on the grid in every column; generic p admit one."""
    rows = np.empty(p.shape)
    masses = np.arange(-math.ceil(reach * GRID), math.ceil(reach * GRID) + 1) / GRID
    for start in range(0, len(p), 64):
        part = slice(start, start + 64)
        # four columns are enough to tell the right sum from thousands of wrong ones
        steps = (masses[:, None, None] * p[part, :4] - gradients[part, :4]) * GRID
        best = masses[np.abs(steps - np.rint(steps)).sum(axis=-1).argmin(axis=0)]
        rows[part] = np.rint((best[:, None] * p[part] - gradients[part]) * GRID) / GRID
    return rows


def _bits(loss: Loss, p: Array, gradients: Array) -> Array:
    """Solve θ̃_k/p_k = s_k(v_k) − Σ_j p_j s_j(v_j) for the bits: guess the first bit, read off the constant, decode."""
    if not isinstance(loss, ForwardCorrectedBits):
        raise TypeError("Unary labels are trained with the bits' likelihood.")
    gain = loss.own - loss.other
    mixed = loss.other + gain * p
    slopes = np.stack([gain / (1 - mixed), -gain / mixed])  # s_k for v_k = 0, 1
    seen = gradients / p
    found, misses = [], []
    for first in (0, 1):
        level = slopes[first][:, :1] - seen[:, :1]
        gaps = np.abs(slopes - seen - level)
        found.append(gaps.argmin(axis=0))
        misses.append((gaps.min(axis=0) * p).sum(axis=-1))
    return np.asarray(np.where((misses[0] <= misses[1])[:, None], found[0], found[1]), dtype=np.float64)


def _tiled(k: int, logits: Array) -> Array:
    return np.tile(np.eye(logits.shape[-1], dtype=logits.dtype)[k], (len(logits), 1))
