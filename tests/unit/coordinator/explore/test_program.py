"""Evidence against true labels is counted as a figure on them, and refused where accuracies would be."""

import math

import numpy as np
import pytest
import sqlalchemy as sa

from parley.coordinator.evaluations import EvaluationAccess
from parley.coordinator.explore.program import check, program
from parley.coordinator.labels import LabelAccess
from parley.coordinator.programs import CommonRows
from parley.privacy.dataset_ledger import DatasetTerms
from parley.privacy.evaluations import EvaluationPolicy, EvaluationRefused, EvaluationRegister
from parley.privacy.noise import new_key
from parley.simulation.runs import scratch_ledger
from parley.spec.parsing import parse_spec
from parley.tables.loading import Labels, id_digest

ROWS = 60
IDS = np.array([f"{row:02d}" for row in range(ROWS)])
LABELS = Labels(IDS, np.arange(ROWS) % 2, ("no", "yes"))
COMMON = CommonRows(ROWS, bytes.fromhex(id_digest(IDS)), "bank")
SPEC = """
name: explored
parties: [bank, shop]
split: {{lower: "{rows}", upper: lower, test: 0}}
train: {{algorithm: explore, against_label: true}}
privacy: {{labels: {{mechanism: "{mechanism}"}}}}
"""


@pytest.fixture
def register():
    opened = EvaluationRegister(sa.create_engine("sqlite://", poolclass=sa.StaticPool))
    yield opened
    opened.close()


def begin(register, run, rows, mechanism="off", policy=EvaluationPolicy()):  # noqa: B008 (frozen)
    spec = parse_spec(SPEC.format(rows=rows, mechanism=mechanism))
    ways = EvaluationAccess(register, policy, "labels", run, new_key())
    terms = DatasetTerms(epsilon=math.inf, delta=0.0)
    access = LabelAccess(spec, run, lambda _, __: LABELS, scratch_ledger(), new_key(), terms, ways)
    check(spec, access, COMMON)
    program(spec, access)


def test_evidence_over_rows_that_differ_by_one_is_not_told_twice(register):
    begin(register, "first", "0:30")
    begin(register, "again", "0:30")
    assert [counted.name for counted in register.of_run("first")] == ["explored"]
    with pytest.raises(EvaluationRefused, match="differ by 1"):
        begin(register, "second", "0:31")
    begin(register, "noisy", "0:31", "once")
    assert register.of_run("noisy") == []


def test_evidence_without_noise_is_refused_where_figures_leave_with_noise_only(register):
    with pytest.raises(EvaluationRefused, match=r"against_label.*needs exact figures"):
        begin(register, "first", "0:30", policy=EvaluationPolicy(epsilon=1.0))
