"""Which rows a round of BAMBI reads: both roles derive the same rows from the run's public numbers, and list none."""

from parley.numerics.streams import batch
from parley.protocols.bambi.settings import BambiSpec
from parley.spec.rows import Rows, RowSets


def lower_rows(settings: BambiSpec, rows: RowSets, seed: int, k: int, t: int) -> Rows:
    """Rows of lower batch (k, t); every Newton step of an upper iteration sees the same ones."""
    t = 0 if settings.lower.solver == "newton" else t
    return batch(seed, "lower", k, t, rows.lower, settings.lower.batch or len(rows.lower))


def upper_rows(settings: BambiSpec, rows: RowSets, seed: int, k: int) -> Rows:
    """Rows of upper batch k."""
    return batch(seed, "upper", k, 0, rows.upper, settings.upper.batch or len(rows.upper))
