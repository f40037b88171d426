"""Which rows a round of BAMBI reads: both roles derive the same rows from the run's public numbers, and list none."""

import math

import numpy as np

from parley.numerics.streams import batch, stream
from parley.protocols.bambi.settings import BambiSpec
from parley.spec.rows import Rows, RowSets


def lower_rows(settings: BambiSpec, rows: RowSets, seed: int, k: int, t: int) -> Rows:
    """Rows of lower batch (k, t); every Newton step of an upper iteration sees the same ones."""
    t = 0 if settings.lower.solver == "newton" else t
    return batch(seed, "lower", k, t, rows.lower, settings.lower.batch or len(rows.lower))


def upper_rows(settings: BambiSpec, rows: RowSets, seed: int, k: int) -> Rows:
    """Rows of upper batch k; of both levels where there is one problem."""
    candidates = rows.trained if settings.problem == "joint" else rows.upper
    return batch(seed, "upper", k, 0, candidates, settings.upper.batch or len(candidates))


def envelope(settings: BambiSpec, rows: RowSets) -> bool:
    """Whether the direct term is the whole hyper-gradient of a run by `implicit`."""
    learns = settings.hypergradient == "implicit" and settings.problem == "hyper_representation"
    if not learns or not settings.implicit.envelope:
        return False
    return rows.lower is rows.upper or np.array_equal(rows.lower, rows.upper)


def local_batches(settings: BambiSpec, rows: RowSets) -> int:
    """How many different batches the exchanges of local rounds have: one, if it can hold all rows."""
    local = settings.local
    return 1 if len(rows.lower) <= local.rows else min(local.exchanges, math.ceil(local.total_epochs / local.epochs))


def local_rows(settings: BambiSpec, rows: RowSets, seed: int, number: int) -> Rows:
    """Rows of a batch of local rounds: even parts of the lower rows, which are put in another order for every pass."""
    parts = math.ceil(len(rows.lower) / settings.local.rows)
    if parts == 1:
        return rows.lower
    turn, part = divmod(number, parts)
    # Raw words and a stable sort: numpy promises both across versions, so all organisations divide alike.
    words = stream(seed, "local", turn).bit_generator.random_raw(len(rows.lower))
    order = np.argsort(words, kind="stable")
    first, last = (len(order) * edge // parts for edge in (part, part + 1))
    return np.sort(rows.lower[order[first:last]])


def steps_of_a_pass(settings: BambiSpec, count: int) -> int:
    """Local steps that read `count` rows once."""
    return max(1, count // settings.local.minibatch)
