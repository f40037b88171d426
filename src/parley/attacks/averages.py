"""Rows from averages: what the movement of an averaged model says of the rows that moved it (gradient inversion).

A gradient of softmax regression is Σ_i x_i r_iᵀ: its columns span the rows of the batch, as long as these are fewer
than the classes. A secure sum over few rows therefore holds them, whoever's they are.
"""

import numpy as np

from parley.attacks.findings import Finding, unbounded
from parley.attacks.stand_in import StandIn
from parley.attacks.tapes import Array, rehearse
from parley.protocols.fedbio.settings import CleaningSpec, FedbioSpec

INVERSION = "gradient inversion on averages"


def explained(gradient: Array, rows: Array) -> Array:
    """For each row the share of its squared length that lies in the span of a gradient (columns × classes)."""
    left, singular, _ = np.linalg.svd(gradient, full_matrices=False)
    basis = left[:, singular > 1e-6 * singular[0]]
    return np.asarray(np.square(rows @ basis).sum(axis=1) / np.square(rows).sum(axis=1))


def invert_averages(subject: StandIn) -> list[Finding]:
    """How well the best row of any party is explained by the average's movement, beyond rows that nobody has."""
    train = subject.spec.train
    if not isinstance(train, FedbioSpec) or not isinstance(train.task, CleaningSpec) or train.task.hidden:
        return []
    columns, classes = len(subject.columns[subject.spec.parties[0].name]), subject.classes
    moves, before = [], None
    parties = train.parties_per_round or len(subject.spec.parties)
    for _, total in rehearse(subject).asked("variables"):
        model = (total / parties)[: columns * classes].reshape(columns, classes)
        if before is not None:
            moves.append(model - before)
        before = model
    rng = np.random.default_rng(11)
    held = np.vstack(list(subject.features.values()))
    held = (held - held.mean(axis=0)) / held.std(axis=0) if not len(moves) else held
    gains = []
    for move in moves:
        decoys = rng.standard_normal(held.shape)
        chance = float(explained(move, decoys).max())
        gains.append((float(explained(move, held).max()) - chance) / max(1e-9, 1 - chance))
    best = max(gains, default=0.0)
    told = f"the best row is explained to {max(best, 0.0):.0%} beyond chance by one of {len(moves)} averages"
    remedy = "take larger batches and more local steps; ldp_dsbo has a bound for each record"
    return [unbounded(INVERSION, "coordinator", told, max(best, 0.0), 0.5, remedy)]
