"""`implicit` on batches with fewer rows than y has weights, with steps of x that one Newton step cannot follow.

Before y averaged over batches, every one of these runs diverged within 25 steps.
"""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from parley.simulation import train_tables
from parley.spec.parsing import parse_spec
from parley.tables.loading import Labels, Table

SPEC = """
name: steadiness
parties: [bank, shop, telco]
split: {{lower: 0.8, upper: lower, test: 0.2}}
train:
  algorithm: bambi
  model: {{kind: mlp, hidden: [64], out: 16}}
  upper: {{steps: 40, batch: 128, optimiser: {{kind: adam, step: {step}}}}}
  lower: {{batch: {batch}}}
privacy: {{labels: {{mechanism: 'off'}}}}
evaluate_every: 0
"""


def digits():
    data = load_digits()
    ids = np.array([f"{row:04d}" for row in range(len(data.target))])
    scaled = ((data.data - data.data.mean(axis=0)) / np.maximum(data.data.std(axis=0), 1e-6)).astype(np.float32)
    tables = [
        Table(ids, np.ascontiguousarray(part), [f"c{n}" for n in range(part.shape[1])], f"strip {m}")
        for m, part in enumerate(np.array_split(scaled, 3, axis=1))
    ]
    return tables, Labels(ids, data.target.astype(np.int64), tuple(map(str, range(10))))


@pytest.mark.parametrize(("batch", "step", "least"), [(128, 0.01, 0.94), (128, 0.03, 0.92), (256, 0.03, 0.87)])
def test_steps_that_the_lower_level_cannot_follow_do_not_end_in_a_collapse(batch, step, least):
    done = train_tables(parse_spec(SPEC.format(batch=batch, step=step)), *digits())
    losses = [report.metrics["lower loss"] for report in done.reports if "lower loss" in report.metrics]
    assert max(losses) < np.log(10)  # what knowing nothing costs
    assert done.metrics["test accuracy"] > least


@pytest.mark.parametrize(("upper", "told"), [("lower", True), ("0.2", False)])
def test_a_run_whose_levels_have_the_same_rows_is_told_of_local_rounds(upper, told):
    text = SPEC.format(batch=128, step=0.003).replace("lower: 0.8, upper: lower", f"lower: 0.6, upper: {upper}")
    done = train_tables(parse_spec(text.replace("steps: 40", "steps: 2")), *digits())
    topics = [report.warning.topic for report in done.reports if report.warning]
    assert topics == (["same rows at both levels"] if told else [])
