"""How far figures over several sets of rows, taken together, are about single rows.

A count over one set hides a row among the others. Counts over A ∪ {x}, over B and over A ∪ B add up to that of x alone,
though no two of these sets are alike. Whatever is computed linearly from counts over k sets is a combination of their
indicators, which is one number for each row. The share of a row is the part of its own number that the best such
combination can hold.

    symbol  code     is
    M       members  k × rows, 1 where the row is in the set
    ℓ       shares   ℓ_r = m_rᵀ (M Mᵀ)⁺ m_r, between 0 and 1: the leverage of row r

A combination that is zero outside T has Σ_{r ∈ T} ℓ_r ≥ 1. So where no share is above 1/n, every combination is about
at least n rows. One set of n rows gives each of them the share 1/n.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

SINGULAR = 1e-9
"""Eigenvalues of M Mᵀ below this part of the largest one are zeros that were rounded."""

Rows = NDArray[np.uint64]


def row_shares(sets: Sequence[Rows], rows: Rows) -> NDArray[np.float64]:
    """The share of each of `rows`, which are ascending and hold every set."""
    first, kind_of, counts = _kinds(sets, rows)
    members = np.stack([np.isin(rows[first], each, assume_unique=True) for each in sets]).astype(np.float64)
    values, vectors = np.linalg.eigh((members * counts) @ members.T)
    kept = values > SINGULAR * values[-1]
    turned = (vectors[:, kept] / np.sqrt(values[kept])).T @ members
    shares: NDArray[np.float64] = (turned**2).sum(axis=0)
    return shares[kind_of]


def _kinds(sets: Sequence[Rows], rows: Rows) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Rows in the same sets are of one kind: a row of each kind, the kind of each row, how many rows each kind has."""
    kind_of = np.zeros(len(rows), dtype=np.int64)
    for each in sets:
        kind_of = np.unique(2 * kind_of + np.isin(rows, each, assume_unique=True), return_inverse=True)[1]
    _, first, counts = np.unique(kind_of, return_index=True, return_counts=True)
    return first, kind_of, counts
