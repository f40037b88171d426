"""Figures of a party's columns, by its own rows and the labels that it was given: arrays in, arrays out.

code        shape              leaves?
columns     (rows, columns)    never
summary     (columns, 10)      by policy, three digits
bins        (columns, most, 3) by policy, three digits
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parley.numerics.arrays import Array, Vector
from parley.numerics.column_figures import LEVELS, Bins, cut, evidence, joined, quantile, stability
from parley.protocols.explore.messages import ReleasedLabels

SUMMARY = ("rows", "missing share", "mean", "deviation", *(f"quantile {level:g}" for level in LEVELS), "psi", "iv")
OF_A_BIN = ("up to", "share", "woe")
CELLS = 64
"""Of a histogram that is noised, over the range that is public."""


@dataclass(frozen=True)
class Columns:
    """What is explored."""

    reference: Array
    """Rows of the lower and upper sets, in the units of the table."""
    compared: Array
    """Held-out rows, which stability is about."""
    missing: Vector
    """Share of values that were filled in, by column; nan where so few were that it is not told."""
    ranges: Array
    """(columns, 2): where values are counted that are noised; by the public figures that the owner declares."""


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


def counted(columns: Columns, labels: ReleasedLabels | None) -> NDArray[np.int64]:
    """Rows in each cell, (columns, populations, CELLS): explored ones (by class where there are labels), compared ones.

    A row is in one cell of each column's, whatever its value; which population it is in does not depend on that.
    """
    found = []
    for number, edges in enumerate(_edges(columns.ranges)):
        grid, values = Bins(edges), columns.reference[:, number]
        classes = [np.ones(len(values))] if labels is None else [labels.classes == 0, labels.classes == 1]
        found.append([*(grid.counts(values, weights) for weights in classes), grid.counts(columns.compared[:, number])])
    populations = 2 if labels is None else 3
    return np.array(found, dtype=np.int64).reshape(-1, populations, CELLS)


def explore_counts(noised: Array, columns: Columns, most: int, cell: int, labels: ReleasedLabels | None) -> Figures:
    """Figures of all columns from noisy counts and nothing else: bins with shares and evidence, stability."""
    width, rows = len(noised), len(columns.reference)
    summary, bins = np.full((width, len(SUMMARY)), np.nan), np.full((width, most, len(OF_A_BIN)), np.nan)
    for number, (edges, populations) in enumerate(zip(_edges(columns.ranges), noised, strict=True)):
        ends = joined(populations[:-1].sum(axis=0), most, cell)
        parts = np.stack([np.add.reduceat(one, [0, *ends]) for one in populations])
        counts, compared = (np.maximum(one, 0.0) for one in (parts[:-1].sum(axis=0), parts[-1]))
        counts = counts if counts.sum() > 0 else np.ones_like(counts)
        summary[number, SUMMARY.index("rows")] = rows
        if len(columns.compared) >= cell and compared.sum() > 0:
            summary[number, SUMMARY.index("psi")] = stability(counts, compared)
        bins[number, : len(ends), 0] = edges[np.array(ends, dtype=np.int64) - 1]
        bins[number, : len(counts), 1] = counts / counts.sum()
        if labels is not None:
            told = evidence(counts, np.clip(parts[1], 0.0, counts), labels.flip)
            bins[number, : len(counts), 2], summary[number, SUMMARY.index("iv")] = told.weights, told.value
    return Figures(summary, bins)


def _edges(ranges: Array) -> Array:
    """(columns, CELLS − 1): inner edges of the cells; the first and the last reach as far as values do."""
    return np.linspace(ranges[:, 0], ranges[:, 1], CELLS + 1, axis=1)[:, 1:-1]
