"""Rows from averages: what the movement of an averaged model says of the rows that moved it (gradient inversion).

A gradient of softmax regression is Σ_i x_i r_iᵀ: its columns span the rows of the batch, as long as these are fewer
than the classes. A secure sum over few rows therefore holds them, whoever's they are.
"""

import numpy as np

from parley.attacks.findings import Finding, unbounded
from parley.attacks.stand_in import StandIn
from parley.attacks.tapes import Array, rehearse
from parley.party.fedbio.steps import Randomness
from parley.protocols.fedbio.settings import CleaningSpec, FedbioSpec

INVERSION = "gradient inversion on averages"


def explained(gradient: Array, rows: Array) -> Array:
    """For each row the share of its squared length that lies in the span of a gradient (columns × classes)."""
    left, singular, _ = np.linalg.svd(gradient, full_matrices=False)
    basis = left[:, singular > 1e-6 * singular[0]]
    return np.asarray(np.square(rows @ basis).sum(axis=1) / np.square(rows).sum(axis=1))


def rows_of_batches(subject: StandIn) -> Array:
    """What every row adds to an average, (rows of all parties, columns, classes), where the model hardly moves.

    Which rows a batch holds follows from the public seed. So every average is an equation about what its rows add,
    and as many averages as there are rows have one solution, however large the batches are.
    """
    spec, train = subject.spec, subject.spec.settings(FedbioSpec)
    columns, classes = len(subject.columns[spec.parties[0].name]), subject.classes
    models = [total[: columns * classes] for _, total in rehearse(subject).asked("variables")]
    moves = np.diff(np.stack(models) / len(spec.parties), axis=0)
    held = np.zeros((len(moves), len(spec.parties), subject.rows))
    for index, entry in enumerate(spec.parties):
        drawn = Randomness(spec.seed, entry.name)
        for k in range(len(moves)):
            held[k, index, drawn.rows("lower", k + 1, 0, subject.rows, train.batch)] = 1.0
    found, *_ = np.linalg.lstsq(held.reshape(len(moves), -1), moves, rcond=None)
    return np.asarray(found.reshape(-1, columns, classes))


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
