"""Local rounds at a party, and a whole run of them in one process."""

import numpy as np
import pytest
import torch
import yaml

from parley.numerics.losses import ForwardCorrectedSoftmax, Logistic, Softmax, Squared
from parley.party.bambi.local_role import LocalRole, training_loss
from parley.party.bambi.local_rounds import LocalBlock, _minibatches
from parley.party.bambi.models import build_model
from parley.party.bambi.steps import Block, OutcomeMisshapen, OutcomeUnexpected
from parley.party.roles import CheckpointMissing
from parley.protocols.bambi.messages import Gradient, LocalForward, LocalWork, LowerForward
from parley.protocols.bambi.settings import BambiSpec
from parley.protocols.rounds import Checkpoint
from parley.simulation.runs import Holding, simulation_of
from parley.spec.parsing import SpecInvalid, parse_spec
from parley.spec.protection import LabelPrivacySpec
from parley.spec.rows import RowSets
from parley.tables.loading import Labels, Table

ROWS, CLASSES = 40, 3
DRAW = np.random.default_rng(6)
FEATURES = DRAW.standard_normal((ROWS, 2)).astype(np.float32)
LABELS = DRAW.integers(CLASSES, size=ROWS)


def role(**local):
    train = {"algorithm": "bambi", "hypergradient": "local", "local": {"minibatch": 10} | local}
    settings = BambiSpec.model_validate(train | {"model": {"kind": "mlp", "hidden": [4], "out": 3}})
    model = build_model("mlp", 2, 3, (4,))
    rows = RowSets(np.arange(ROWS), np.arange(ROWS), np.empty(0, np.int64))
    block = Block(settings, model, FEATURES, rows, 1, 0, (model.size,) * 2, CLASSES)
    return LocalRole(LocalBlock(block, Softmax(CLASSES)))


def work(**changes):
    given = {
        "logits": np.zeros((ROWS, CLASSES - 1), np.float16),
        "labels": LABELS.astype(np.uint8),
        "steps": 4,
        "weights": (),
    }
    return LocalWork(**given | changes)


def asked(party):
    return party.plan(party.begin(None), (None, LocalForward(1, 0))).state


def test_an_exchange_asks_for_one_column_less_than_there_are_classes():
    party = role()
    plan = party.plan(party.begin(None), (None, LocalForward(1, 0)))
    assert plan.draft.shape == (ROWS * (CLASSES - 1),)


def test_local_steps_lower_the_loss_that_the_party_sees():
    party = role()
    state = party.plan(asked(party), (work(steps=20), Checkpoint(1))).state
    own = party.plan(state, (None, LocalForward(2, 0))).draft.reshape(ROWS, CLASSES - 1)
    seen = np.append(2 * own, np.zeros((ROWS, 1)), axis=1)
    target = np.eye(CLASSES)[LABELS]
    assert Softmax(CLASSES).value(seen, target) < Softmax(CLASSES).value(np.zeros_like(seen), target)


def rows_of_steps(steps, **local):
    """The rows that each of so many local steps reads."""
    return [np.arange(ROWS) if rows is None else rows for rows in _minibatches(role(**local).block, 1, ROWS, steps)]


def test_a_whole_pass_reads_every_row_once():
    read = rows_of_steps(4, least_steps=1)
    assert [len(rows) for rows in read] == [10] * 4
    np.testing.assert_array_equal(np.sort(np.concatenate(read)), np.arange(ROWS))


@pytest.mark.parametrize(("steps", "least"), [(3, 1), (4, 4), (6, 6)])
def test_the_fewest_steps_and_those_below_a_pass_read_all_rows(steps, least):
    assert [len(rows) for rows in rows_of_steps(steps, least_steps=least)] == [ROWS] * steps


def test_steps_of_half_the_size_move_half_as_far():
    party = role()
    begun = asked(party)
    moves = [
        party.plan(begun, (work(steps=1, step_scale=scale), Checkpoint(1))).state.point.x - begun.point.x
        for scale in (1.0, 0.5)
    ]
    np.testing.assert_allclose(moves[1], moves[0] / 2, atol=1e-8)


@pytest.mark.parametrize(
    "wrong",
    [
        {"logits": np.zeros((ROWS, CLASSES), np.float16)},
        {"logits": np.zeros((ROWS - 1, CLASSES - 1), np.float16)},
        {"labels": LABELS[:-1].astype(np.uint8)},
        {"labels": np.full(ROWS, CLASSES, np.uint8)},
        {"labels": np.zeros((ROWS, CLASSES + 1), np.float32)},
        {"steps": 0},
        {"steps": 41},
        {"weights": (0.5,)},
    ],
)
def test_work_that_no_exchange_of_the_run_can_have_is_refused(wrong):
    party = role()
    with pytest.raises(OutcomeMisshapen):
        party.plan(asked(party), (work(**wrong), Checkpoint(1)))


def test_a_weight_out_of_range_is_refused():
    party = role()
    state = party.plan(asked(party), (work(), LocalForward(2, 0))).state
    with pytest.raises(OutcomeMisshapen, match="weights"):
        party.plan(state, (work(weights=(3.5,)), Checkpoint(2)))


def test_what_is_out_of_turn_is_refused():
    party = role()
    fresh = party.begin(None)
    for instruction in (
        (work(), LocalForward(1, 0)),
        (None, LocalForward(2, 0)),
        (None, LowerForward(1, 0)),
        (Gradient(), LocalForward(1, 0)),
    ):
        with pytest.raises(OutcomeUnexpected):
            party.plan(fresh, instruction)


def test_going_on_along_a_move_starts_where_it_leads():
    party = role(upper_step=1e-12, lower_step=1e-12)
    first = party.plan(asked(party), (work(), LocalForward(2, 0))).state
    shifted = first.point._replace(y=first.point.y + 1)
    state = party.plan(first._replace(point=shifted), (work(weights=(0.5,)), Checkpoint(2))).state
    torch.testing.assert_close(state.point.y, torch.full_like(shifted.y, 1.5), atol=1e-5, rtol=0)


def test_a_checkpoint_holds_all_that_the_next_round_needs():
    party = role()
    state = asked(party)
    for k in range(2, 5):
        state = party.plan(state, (work(weights=(0.1,) * min(k - 2, 2)), LocalForward(k, 0))).state
    state = party.plan(state, (work(), Checkpoint(4))).state
    back = party.begin(party.tensors(state))
    for one, other in ((state, back),):
        mine = party.plan(party.plan(one, (None, LocalForward(5, 0))).state, (work(weights=(0.3, 0.2)), Checkpoint(5)))
        theirs = party.plan(
            party.plan(other, (None, LocalForward(5, 0))).state, (work(weights=(0.3, 0.2)), Checkpoint(5))
        )
        left, right = party.tensors(mine.state), party.tensors(theirs.state)
        assert left.keys() == right.keys()
        assert all(torch.equal(left[name], right[name]) for name in left)


def test_a_checkpoint_of_another_model_is_not_begun_from():
    with pytest.raises(CheckpointMissing):
        role().begin({"x": torch.zeros(3)})


def test_the_loss_at_a_party_fits_the_noise_of_the_labels():
    assert isinstance(training_loss("softmax", 3, LabelPrivacySpec(mechanism="off")), Softmax)
    assert isinstance(training_loss("softmax", 3, LabelPrivacySpec(epsilon=2.0)), ForwardCorrectedSoftmax)
    assert isinstance(training_loss("logistic", 1, LabelPrivacySpec(mechanism="per_step")), Logistic)
    assert isinstance(training_loss("squared", 1, LabelPrivacySpec(mechanism="off")), Squared)


def spec_of(split=None, **changes):
    text = {
        "name": "local",
        "seed": 2,
        "parties": ["a", "b"],
        "split": split or {"lower": 0.8, "upper": "lower", "test": 0.2},
        "train": {
            "algorithm": "bambi",
            "hypergradient": "local",
            "model": {"kind": "mlp", "hidden": [4], "out": 3},
            "local": {"exchanges": 6, "rows": 16, "minibatch": 8},
        }
        | changes.pop("train", {}),
        "checkpoint_every": 2,
        "evaluate_every": 3,
    }
    return parse_spec(yaml.safe_dump(text | changes))


def simulation(spec):
    ids = np.array([f"{row:03}" for row in range(ROWS)])
    known = Labels(ids, LABELS.astype(np.int64), tuple("012"))
    holdings = [Holding(Table(ids, FEATURES[:, [m]], ["c"], "train")) for m in range(2)]
    return simulation_of(spec, holdings, lambda _, __: known, noise_key=bytes(32))


@pytest.mark.parametrize("mechanism", ["once", "per_step", "off"])
def test_a_run_that_is_resumed_ends_with_the_same_bits(mechanism):
    spec = spec_of(privacy={"labels": {"mechanism": mechanism}})
    whole = simulation(spec).run()
    for k, saved in whole.checkpoints.items():
        again = simulation(spec)
        rest = again.run(resume=saved)
        for role_, one, other in zip(again.roles, whole.states, rest.states, strict=True):
            mine, theirs = role_.tensors(one), role_.tensors(other)
            assert all(torch.equal(mine[name], theirs[name]) for name in mine), f"from checkpoint {k}"


def test_labels_are_released_once_for_each_batch():
    asked_for = set()
    simulation(spec_of()).run(watch=lambda current, _: asked_for.add(current.label_release))
    assert asked_for - {None} <= set(range(6))
    alone = set()
    train = {"local": {"exchanges": 6, "minibatch": 8}}
    simulation(spec_of(train=train)).run(watch=lambda current, _: alone.add(current.label_release))
    assert alone - {None} == {0}


@pytest.mark.parametrize("split", [{"lower": 0.6, "upper": 0.2, "test": 0.2}, {"lower": "0:20", "upper": "20:30"}])
def test_levels_with_different_rows_are_refused(split):
    with pytest.raises(SpecInvalid, match="same rows"):
        spec_of(split=split)


def test_the_same_range_for_both_levels_is_the_same_rows():
    assert spec_of(split={"lower": "0:20", "upper": "0:20", "test": "20:30"}).train.hypergradient == "local"


def test_coefficients_are_not_learnt_by_local_rounds():
    with pytest.raises(SpecInvalid, match="implicit"):
        spec_of(train={"problem": "hyper_parameters"})
