"""Figures of a party's columns, by its own rows and the labels that it was given: arrays in, arrays out.

code        shape              leaves?
columns     (rows, columns)    never
summary     (columns, 10)      by policy, three digits
bins        (columns, most, 3) by policy, three digits
"""

from dataclasses import dataclass

import numpy as np

from parley.numerics.arrays import Array, Vector
from parley.numerics.column_figures import LEVELS, cut, evidence, quantile, stability
from parley.protocols.explore.messages import ReleasedLabels

SUMMARY = ("rows", "missing share", "mean", "deviation", *(f"quantile {level:g}" for level in LEVELS), "psi", "iv")
OF_A_BIN = ("up to", "share", "woe")


@dataclass(frozen=True)
class Columns:
    """What is explored."""

    reference: Array
    """Rows of the lower and upper sets, in the units of the table."""
    compared: Array
    """Held-out rows, which stability is about."""
    missing: Vector
    """Share of values that were filled in, by column; nan where so few were that it is not told."""


@dataclass(frozen=True)
class Figures:
    """What was found; nan where a figure is not there."""

    summary: Array
    """In the order of SUMMARY."""
    bins: Array
    """In the order of OF_A_BIN; the last bin has no upper edge."""


def explore(columns: Columns, most: int, cell: int, labels: ReleasedLabels | None) -> Figures:
    """All figures of all columns."""
    width = columns.reference.shape[1]
    summary, bins = np.full((width, len(SUMMARY)), np.nan), np.full((width, most, len(OF_A_BIN)), np.nan)
    for number in range(width):
        values, compared = columns.reference[:, number], columns.compared[:, number]
        found = cut(values, most, cell)
        counts, ordered = found.counts(values), np.sort(values)
        known = [len(values), columns.missing[number], values.mean(), values.std()]
        psi = stability(counts, found.counts(compared)) if len(compared) >= cell else np.nan
        told = evidence(counts, found.counts(values, labels.classes), labels.flip) if labels is not None else None
        quantiles = [quantile(ordered, level, cell) for level in LEVELS]
        summary[number] = [*known, *quantiles, psi, np.nan if told is None else told.value]
        bins[number, : len(found.edges), 0] = found.edges
        bins[number, : len(counts), 1] = counts / counts.sum()
        if told is not None:
            bins[number, : len(counts), 2] = told.weights
    return Figures(summary, bins)
