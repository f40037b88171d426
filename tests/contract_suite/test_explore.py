"""Exploring keeps the contract of every algorithm; pooled, it is each column's own figures and the labels beside it."""

import numpy as np

from parley.numerics.streams import stream
from parley.party.explore.steps import SUMMARY
from parley.spec.parsing import parse_spec
from parley.spec.rows import divide
from parley.testing import AlgorithmCase
from tests.contract_suite.built_in import PARTIES, BuiltInContract

ROWS = 200
SPEC = f"""
name: explore-contract
seed: 3
table: explore
parties: [{", ".join(PARTIES)}]
split: {{lower: 0.6, upper: 0.1, test: 0.3}}
train: {{algorithm: explore, bins: 4, smallest_cell: 20, against_label: true}}
privacy:
  labels: {{mechanism: "off"}}
checkpoint_every: 1
"""
DRAW = np.random.default_rng(2)
COLUMNS = DRAW.integers(0, 3, (ROWS, 3)).astype(float)
LABELS = (COLUMNS.sum(axis=1) + DRAW.standard_normal(ROWS) > 3).astype(int)
IDS = [f"{row:03}" for row in range(ROWS)]


def pooled(_):
    """Counted with plain loops, from everybody's columns and labels."""
    sets = divide(parse_spec(SPEC).split, ROWS, stream(3, "split"))
    found = {}
    for party, column in zip(PARTIES, COLUMNS.T, strict=True):
        values, classes, compared = column[sets.trained], LABELS[sets.trained], column[sets.test]
        iv = psi = 0.0
        shares, weights = [], []
        for value in (0.0, 1.0, 2.0):
            zero, one = (np.mean(values[classes == c] == value) for c in (0, 1))
            weights.append(np.log(zero / one))
            iv += (zero - one) * weights[-1]
            shares.append(np.mean(values == value))
            psi += (np.mean(compared == value) - shares[-1]) * np.log(np.mean(compared == value) / shares[-1])
        summary = np.full((1, len(SUMMARY)), np.nan)
        quantiles = [windowed(values, level) for level in (0.05, 0.25, 0.5, 0.75, 0.95)]
        summary[0] = [len(values), 0.0, values.mean(), values.std(), *quantiles, psi, iv]
        bins = np.full((1, 4, 3), np.nan)
        bins[0, :2, 0], bins[0, :3, 1], bins[0, :3, 2] = [0.5, 1.5], shares, weights
        found[party] = {"summary": summary, "bins": bins}
    return found


def windowed(values, level):
    """The mean of twenty rows around a quantile."""
    ordered = np.sort(values)
    first = min(max(0, round(level * (len(ordered) - 1)) - 10), len(ordered) - 20)
    return ordered[first : first + 20].mean()


class TestExplore(BuiltInContract):
    case = AlgorithmCase(
        spec=SPEC,
        tables={party: {"explore": {"id": IDS, "c": COLUMNS[:, m]}} for m, party in enumerate(PARTIES)},
        labels={"explore": {"id": IDS, "label": LABELS}},
        pooled=pooled,
        tolerance=1e-12,
        public={"parley.explore.v1.Instruction.flip": "follows from the spec's ε"},
    )
