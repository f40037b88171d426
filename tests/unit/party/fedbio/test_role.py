"""A party's side of a FedBiO run: whom it sums with, what it keeps, what it lets be read."""

from typing import Any

import numpy as np
import pytest

from parley.numerics.participation import participants
from parley.party.fedbio.role import ALGORITHM, ParticipantsRefused, accept
from parley.party.fedbio.tasks import SUSPECTS
from parley.party.roles import Begun, Opened
from parley.protocols.fedbio.messages import AveragingRound
from parley.services.party.config import Policy, TableConfig
from parley.services.party.policy import PolicyRefused, check_policy
from parley.services.party.tables import TableStore
from parley.spec.parsing import parse_spec
from parley.tables.errors import RowsDiffer

SPEC = """
name: small
seed: 4
table: records
parties: [a, b, c, d]
train:
  algorithm: fedbio
  rounds: 4
  batch: 8
  task: {kind: data_cleaning, classes: ["no", "yes"], checked: checked, truth: truth}
"""


@pytest.fixture
def store(tmp_path):
    """A hospital whose tables have shuffled ids, and whose truth table lists more rows than its records."""
    generator = np.random.default_rng(0)
    names = {"records": 20, "checked": 6, "truth": 25}
    configs = {}
    for table, rows in names.items():
        prefix = "c" if table == "checked" else "r"
        lines = [f"{prefix}{i},{i / 10},{-i},{'yes' if i % 2 else 'no'}" for i in range(rows)]
        generator.shuffle(lines)
        path = tmp_path / f"{table}.csv"
        path.write_text("\n".join(["id,height,weight,label", *lines]))
        configs[table] = TableConfig(path=path, label="label", standardise=True)
    return TableStore(configs)


def opened(store, text=SPEC):
    return Opened(parse_spec(text), 1, "run-1", "s-1", store.load("records"), store)


def begun(store, text=SPEC):
    return Begun(opened(store, text), [0] * 4, 2, None, None)


def role_of(begun) -> Any:
    return ALGORITHM.role(begun)


def test_a_party_sums_with_exactly_the_parties_that_the_seed_draws(store):
    role = role_of(begun(store, SPEC.replace("rounds: 4", "rounds: 4\n  parties_per_round: 2")))
    k = next(k for k in range(20) if 1 in participants(4, k, 4, 2))
    drawn = participants(4, k, 4, 2)
    mean = None if k == 0 else np.zeros(4 * 6)
    plan = role.plan(role.begin(None), AveragingRound("variables", k, drawn, mean))
    assert plan.participants == frozenset(drawn)
    other = next(pair for pair in [(0, 1), (1, 2), (1, 3)] if pair != drawn)
    for wrong in (other, (0, 1, 2, 3), (1,)):
        with pytest.raises(ParticipantsRefused):
            role.plan(role.begin(None), AveragingRound("variables", k, wrong, mean))


def test_evaluations_and_checkpoints_are_for_everyone(store):
    role = role_of(begun(store, SPEC.replace("rounds: 4", "rounds: 4\n  parties_per_round: 2")))
    assert role.plan(role.begin(None), AveragingRound("checkpoint", 1, (0, 1, 2, 3))).checkpoint == 1
    with pytest.raises(ParticipantsRefused):
        role.plan(role.begin(None), AveragingRound("evaluate", 0, (0, 1)))


def test_a_checkpoint_brings_the_same_state_back(store):
    bilevel = SPEC.replace("  rounds: 4", "  rounds: 4\n  warm_rounds: 0")
    role = role_of(begun(store, bilevel))
    everyone = (0, 1, 2, 3)
    state = role.plan(role.begin(None), AveragingRound("variables", 0, everyone)).state
    state = role.plan(state, AveragingRound("momenta", 0, everyone, np.zeros(12))).state
    state = role.plan(state, AveragingRound("checkpoint", 1, everyone)).state
    again = role_of(begun(store, bilevel)).begin(role.tensors(state))
    assert again.done == 1
    following = AveragingRound("variables", 1, everyone, np.full(12, 0.1))
    np.testing.assert_array_equal(role.plan(state, following).draft, role.plan(again, following).draft)


def test_checked_rows_are_read_under_the_scaling_of_the_records(store):
    objective: Any = role_of(begun(store))._task.objective
    table = store.load("records")
    raw = np.array([[i / 10, -i] for i in range(6)], dtype=float)
    expected = (raw - table.scaling.mean) / table.scaling.std
    np.testing.assert_allclose(np.sort(objective.validation_features, axis=0), np.sort(expected, axis=0))


def test_labels_follow_their_ids_into_every_table(store):
    objective: Any = role_of(begun(store))._task.objective
    np.testing.assert_array_equal(objective.wrong, np.zeros(20, dtype=bool))


def test_the_number_of_rows_is_not_told_as_a_size(store):
    assert accept(opened(store)).upper_size == 0


def test_a_saved_model_predicts_at_home():
    assert ALGORITHM.predictor is None


def test_a_share_of_the_rows_can_be_the_checked_ones(store):
    role = role_of(begun(store, SPEC.replace("checked: checked", "checked: 0.2")))
    objective = role._task.objective
    assert (objective.lower_rows, objective.upper_rows) == (16, 4)
    ranked = role.reports(role.begin(None))[SUSPECTS].decode().splitlines()
    assert len(ranked) == 17


def test_rows_without_a_label_are_refused(store, tmp_path):
    (tmp_path / "truth.csv").write_text("id,height,weight,label\nr1,0,0,yes\n")
    with pytest.raises(RowsDiffer, match="some rows have no label in table truth"):
        accept(opened(store))


def test_the_policy_is_asked_about_every_table_that_a_run_reads():
    policy = Policy(coordinators=("hub",), algorithms=("fedbio",), tables=("records", "checked"))
    with pytest.raises(PolicyRefused, match="table truth is not open"):
        check_policy(policy, parse_spec(SPEC), 1, "hub")
    open_policy = Policy(coordinators=("hub",), algorithms=("fedbio",), tables=("records", "checked", "truth"))
    check_policy(open_policy, parse_spec(SPEC), 1, "hub")
