"""Columns of a party from sums that the coordinator opens: masks hide addends, not what the sums span.

While embeddings are linear in the features, every sum over the same rows lies in the span of all parties' columns.
Once as many sums as there are columns have opened, a guessed column is confirmed, or excluded, by its distance to it.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from parley.attacks.findings import Finding, bounded, unbounded
from parley.attacks.stand_in import StandIn
from parley.attacks.tapes import Array, Tape, rehearse
from parley.numerics.streams import stream
from parley.privacy.feature_noise import RowNoise
from parley.privacy.gaussian import gaussian_ratio
from parley.protocols.asysqn.batches import watched_rows
from parley.protocols.asysqn.settings import AsysqnSpec
from parley.protocols.bambi.batches import lower_rows
from parley.protocols.bambi.settings import BambiSpec
from parley.protocols.glm.settings import GlmSpec
from parley.spec.rows import divide

PROJECTION, DIFFERENCING = "column confirmed by projection", "column from two runs"
REMEDY = (
    "write `privacy: {features: {kind: once, …}}` (or `per_sum`), or have the parties' owners leave `sums_per_row` in "
    "their policies at `columns`"
)


def sums_over_rows(subject: StandIn, tape: Tape) -> tuple[NDArray[np.int64], Array] | None:
    """The rows of which most sums were opened, and these sums side by side; None where sums are not over rows."""
    rows = divide(subject.spec.split, subject.rows, stream(subject.spec.seed, "split"))
    if isinstance(subject.spec.train, BambiSpec):
        settings = subject.spec.train
        groups: dict[bytes, tuple[NDArray[np.int64], list[Array]]] = {}
        for current, total in tape.rounds:
            chosen = _bambi_rows(settings, rows, subject.spec.seed, current.ask)
            if chosen is not None:
                outputs = settings.columns(subject.classes) if settings.loss == "softmax" else 1
                whole = total[: len(total) // (len(chosen) * outputs) * len(chosen) * outputs]
                values = whole.reshape(-1, len(chosen), outputs)
                groups.setdefault(chosen.tobytes(), (chosen, []))[1].extend(values)
        if not groups:
            return None
        chosen, parts = max(groups.values(), key=lambda group: len(group[1]))
        return chosen, np.hstack(parts)
    if isinstance(subject.spec.train, AsysqnSpec):
        watched = watched_rows(subject.spec.seed, rows.trained, subject.spec.train.watch_rows)
        looks = [total[: len(watched)] for _, total in tape.asked("Evaluate")]
        return (watched, np.stack(looks, axis=1)) if looks else None
    if isinstance(subject.spec.train, GlmSpec):
        parts = [total.reshape(current.count, -1) for current, total in tape.rounds if current.phase == "design"]
        return rows.trained, np.concatenate(parts)
    return None


def residual(span: Array, guess: Array) -> float:
    """How much of a centred guess lies outside the span, as a share of its length."""
    guess = guess - guess.mean()
    basis = np.hstack([span, np.ones((len(span), 1))])
    fitted, *_ = np.linalg.lstsq(basis, guess, rcond=1e-9)
    return float(np.linalg.norm(guess - basis @ fitted) / np.linalg.norm(guess))


def confirm_columns(subject: StandIn) -> list[Finding]:
    """Tell a party's true column from one in which a few rows are wrong."""
    seen = sums_over_rows(subject, rehearse(subject))
    if seen is None:
        return []
    rows, sums = seen
    columns, settings = subject.features[subject.spec.parties[-1].name][rows], subject.spec.privacy.features
    if settings.kind == "once":
        noise = RowNoise(settings.epsilon, settings.delta, settings.bound)
        ratio = noise.event(columns.shape[1]).ratio
        return [told_apart(sums, noise.clipped(columns), settings.epsilon, ratio)]
    if settings.kind == "per_sum":
        ratio = gaussian_ratio(settings.epsilon, settings.delta)
        return [told_apart(sums, columns, settings.epsilon, ratio)]
    return [confirmed(sums, columns)]


def told_apart(sums: Array, columns: Array, epsilon: float, ratio: float) -> Finding:
    """Of rows under noise: tell a row's true value from another row's, by how far the column lies from the sums' span.

    Noise of ratio μ lets nobody tell any two versions of a row apart with probability above Φ(μ/2).
    """
    basis, _ = np.linalg.qr(np.hstack([sums, np.ones((len(sums), 1))]))
    right = []
    for column in columns.T:
        outside = column - basis @ (basis.T @ column)
        apart = np.roll(column, 1) - column
        # ‖P(column + d·e)‖² − ‖P column‖² for the projection P off the span: above 0 where the truth is closer
        further = 2 * apart * outside + apart**2 * (1 - (basis**2).sum(axis=1))
        right.append(float(np.mean(further[apart != 0] > 0)))
    best, cap = max(right), float(ndtr(ratio / 2))
    luck = 4 * 0.5 / math.sqrt(len(columns))  # of the best of a few columns, once in ten thousand times
    told = f"{sums.shape[1]} sums over {len(sums)} rows; {best:.0%} of single values told from another row's"
    return bounded(PROJECTION, "coordinator", told, best, min(1.0, cap + luck), f"ε = {epsilon:g} of each row")


def confirmed(sums: Array, columns: Array) -> Finding:
    """Tell true columns (rows × columns) from ones with 2 % of the rows wrong, by sums (rows × any) over them."""
    shares = []
    for column in columns.T:
        decoy = column.copy()
        wrong = np.random.default_rng(2).choice(len(decoy), max(2, len(decoy) // 50), replace=False)
        decoy[wrong] = decoy[np.roll(wrong, 1)]
        right, other = residual(sums, column), residual(sums, decoy)
        shares.append(1.0 - right / other if other > 1e-9 else 0.0)
    best = max(shares)
    told = (
        f"{sums.shape[1]} sums over {len(sums)} rows; a true column lies {best:.0%} closer to them than one with 2 % "
        "of its rows wrong"
    )
    return unbounded(PROJECTION, "coordinator", told, max(0.0, best), 0.5, REMEDY)


def difference_columns(subject: StandIn) -> list[Finding]:
    """Two runs of which the second leaves out one column: does the difference of what they span give it away?"""
    if not isinstance(subject.spec.train, BambiSpec | AsysqnSpec | GlmSpec):
        return []
    entry = subject.spec.parties[-1]
    names = tuple(subject.columns[entry.name])
    without = entry.model_copy(update={"columns": names[:-1]})
    parties = (*subject.spec.parties[:-1], without)
    second = replace(subject, spec=subject.spec.model_copy(update={"parties": parties}))
    first_seen, second_seen = (sums_over_rows(each, rehearse(each)) for each in (subject, second))
    if first_seen is None or second_seen is None or not np.array_equal(first_seen[0], second_seen[0]):
        return []
    rows, guess = first_seen[0], _outside(first_seen[1], second_seen[1])
    truth = subject.features[entry.name][rows, len(names) - 1]
    share = abs(float(np.corrcoef(guess, truth - _projected(second_seen[1], truth))[0, 1])) if guess.any() else 0.0
    told = f"the column that the second run left out, up to the others' span: correlation {share:.3f}"
    settings = subject.spec.privacy.features
    if settings.kind == "once":
        noise = RowNoise(settings.epsilon, settings.delta, settings.bound)
        spread = float(noise.clipped(subject.features[entry.name])[rows, len(names) - 1].var())
        # two views are two draws: the mean of both is the most that is known of a value
        most = math.sqrt(spread / (spread + noise.sigma(len(names) - 1) ** 2 / 2)) + 4 / math.sqrt(len(rows))
        return [bounded(DIFFERENCING, "coordinator", told, share, min(1.0, most), f"ε = {noise.epsilon:g} of each row")]
    if settings.kind == "per_sum":
        return [_told_by_guess(guess, truth, settings.epsilon, gaussian_ratio(settings.epsilon, settings.delta))]
    remedy = "have the parties' owners keep `differencing: refuse` and `free_columns: false` in their policies"
    return [unbounded(DIFFERENCING, "coordinator", told, share, 0.5, remedy)]


def _told_by_guess(guess: Array, truth: Array, epsilon: float, ratio: float) -> Finding:
    """Tell each row's value from another row's by a guess of the column, brought to scale as only its owner could."""
    shift, scale = truth.mean(), float(guess @ (truth - truth.mean())) / max(float(guess @ guess), 1e-30)
    other, scaled = np.roll(truth, 1), shift + scale * guess
    apart = other != truth
    right = float(np.mean(np.abs(scaled - truth)[apart] < np.abs(scaled - other)[apart]))
    cap = float(ndtr(math.sqrt(2) * ratio / 2))  # a row is in both runs
    told = f"{right:.0%} of single values told from another row's, after the second run left their column out"
    return bounded(
        DIFFERENCING, "coordinator", told, right, min(1.0, cap + 2 / math.sqrt(len(truth))), f"ε = {epsilon:g} of a row"
    )


def _outside(first: Array, second: Array) -> Array:
    """The strongest direction of the first span that the second one lacks."""
    remaining = first - np.stack([_projected(second, column) for column in first.T], axis=1)
    remaining -= remaining.mean(axis=0)
    left, singular, _ = np.linalg.svd(remaining, full_matrices=False)
    return left[:, 0] if singular[0] > 1e-6 * np.linalg.norm(first) else np.zeros(len(first))


def _projected(span: Array, vector: Array) -> Array:
    basis = np.hstack([span, np.ones((len(span), 1))])
    fitted, *_ = np.linalg.lstsq(basis, vector, rcond=1e-9)
    return np.asarray(basis @ fitted)


def _bambi_rows(settings: BambiSpec, rows: Any, seed: int, ask: Any) -> NDArray[np.int64] | None:
    match type(ask).__name__:
        case "LowerForward":
            return lower_rows(settings, rows, seed, ask.k, ask.t)
        case "CurvatureForward":
            return lower_rows(settings, rows, seed, ask.k, 0)
    return None
