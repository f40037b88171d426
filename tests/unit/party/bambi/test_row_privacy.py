"""BAMBI with a bound for each row in sums: what a row can move, what it costs, and that nothing leaves twice."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import parley.party.bambi.steps as bambi
from parley.numerics.streams import stream
from parley.party.bambi.models import build_model
from parley.party.bambi.role import accept, block_of, predictor
from parley.party.bambi.row_privacy import RoundNotDue, noised_batches
from parley.party.roles import Begun, LocalPrivacy, Opened
from parley.privacy.accounting import Composed, online_epsilon
from parley.privacy.dataset_ledger import BudgetExhausted, DatasetTerms
from parley.privacy.gaussian import gaussian_delta
from parley.privacy.ledger import LedgerConflict
from parley.privacy.noise import KeyedNoise
from parley.protocols.bambi.messages import Gradient, LowerForward, RowsForward, UpperForward
from parley.simulation.runs import scratch_ledger
from parley.spec.parsing import SpecInvalid, parse_spec
from parley.spec.rows import divide
from parley.tables.loading import Table

ROWS, WIDTH, OUTPUTS = 60, 4, 2
DESCENT = (
    "hypergradient: zeroth_order, lower: {solver: sgd, batch: 12, steps: 2, warmup_steps: 3}, "
    "upper: {steps: 2, batch: 8}"
)
JOINT = "problem: joint, upper: {steps: 4, batch: 12}"
MODELS = {"identity": "{kind: identity}", "network": "{kind: mlp, hidden: [3], out: 2}"}
SPEC = """
name: bounded
dtype: float64
parties: [north, south, west]
split: {{lower: '0:40', upper: {upper}, test: '50:60'}}
train: {{algorithm: bambi, intercept: false, model: {model}, {train}}}
privacy: {{features: {{kind: per_sum, epsilon: {epsilon}, bound: 0.5, step_bound: 0.25, honest: 2}}}}
evaluate_every: 0
"""


def values(changed=None):
    rows = np.random.default_rng(3).standard_normal((ROWS, WIDTH))
    if changed is not None:
        rows[changed] = 50 * np.random.default_rng(4).standard_normal(WIDTH)
    return rows


def opened(train=DESCENT, model="identity", epsilon=8, rows=None, owner=20.0, ledger=None, **fields):
    upper = "lower" if "joint" in train else "'40:50'"
    spec = parse_spec(SPEC.format(train=train, model=MODELS[model], epsilon=epsilon, upper=upper))
    table = Table(
        np.array([f"r{i:02d}" for i in range(ROWS)]), values() if rows is None else rows, list("abcd"), "train"
    )
    book = ledger or scratch_ledger()
    terms = DatasetTerms(owner, 1e-6, changed="charge")
    privacy = LocalPrivacy(book, KeyedNoise(bytes(32)), 10.0, terms)
    return Opened(spec, 0, "run", "s", table, None, privacy=lambda: privacy, **fields)


def begun(found):
    return Begun(found, (0, 0, 0), OUTPUTS, None, lambda _: {})


def block_with_noise(found):
    spec = found.spec
    block = block_of(begun(found), divide(spec.split, ROWS, stream(spec.seed, "split")))
    noised = noised_batches(found, block.model, OUTPUTS)
    noised.trained.releases.open()
    return replace(block, upper_sizes=(block.model.size,) * 3, noised=noised)


def theta(block, shape, scale=1.0):
    return scale * np.random.default_rng(5).standard_normal((*shape, block.columns))


def without_noise(block):
    """The same block, with a record of what goes into the noise."""
    seen = []
    noised = block.noised

    class Releases(type(noised.trained.releases)):
        def noised(self, share, value, number):
            seen.append((number, value.copy(), share))
            return value

    known = noised.trained.releases
    plain = Releases(**{name: getattr(known, name) for name in known.__dataclass_fields__})
    return replace(block, noised=replace(noised, trained=replace(noised.trained, releases=plain))), seen


@pytest.mark.parametrize("model", MODELS)
def test_replacing_a_row_moves_its_own_addend_and_the_step_by_no_more_than_is_noised(model):
    """The one test that the bound stands on: two tables, one row apart, and a row as long as it likes."""
    changed = 7
    found = []
    for rows in (values(), values(changed)):
        block, seen = without_noise(block_with_noise(opened(JOINT, model, rows=rows)))
        state = bambi.start(block)
        state = state._replace(y=np.random.default_rng(6).standard_normal(state.y.shape))  # one known model for both
        for k in range(1, 5):
            asked, _ = bambi.contribute(block, state, UpperForward(k))
            bambi.apply(block, asked, Gradient(vartheta=theta(block, (12,), 30.0)))
        found.append(seen)
    moved, rounds_of_row = 0, 0
    for (number, one, share), (_, other, _) in zip(*found, strict=True):
        distance = np.linalg.norm(one - other)
        assert distance <= share.sensitivity + 1e-12
        if number % 2 == 0:  # addends: no other row's
            rows = np.flatnonzero(np.abs(one - other).reshape(12, -1).sum(axis=1))
            assert len(rows) <= 1
            assert np.linalg.norm(one.reshape(12, -1), axis=1).max() <= 0.5
            rounds_of_row += len(rows)
        moved += distance > 0
    counts = block_with_noise(opened(JOINT, model)).noised.trained.releases.counts.counts
    assert rounds_of_row == counts[changed]
    assert moved >= 2 * rounds_of_row - 1


@pytest.mark.parametrize("train", [DESCENT, JOINT])
@pytest.mark.parametrize("epsilon", [1, 8])
def test_the_noise_is_what_epsilon_needs_and_hardly_more(train, epsilon):
    block = block_with_noise(opened(train, epsilon=epsilon))
    trained = block.noised.trained
    most = int(trained.releases.counts.counts.max())
    assert most >= 2
    spent = online_epsilon(Composed(trained.releases.event, most), 1e-6)
    assert 0.99 * epsilon < spent <= epsilon
    # Every round has two Gaussians of ratio 1/m: what they cost exactly, of which the account knows a bound.
    exact = gaussian_delta(epsilon, math.sqrt(2 * most) / trained.multiplier)
    assert 1e-9 < exact <= 1e-6
    for share, sensitivity in (
        (trained.bounds.addends(trained.multiplier), 2 * 0.5),
        (trained.bounds.steps(trained.multiplier, 12), 2 * 0.25 / 12),
    ):
        assert share.scale * math.sqrt(share.honest) >= sensitivity * trained.multiplier * (1 - 1e-12)


def test_a_round_that_is_made_again_leaves_with_the_same_bytes_or_not_at_all():
    block = block_with_noise(opened())
    state = bambi.start(block)
    asked, first = bambi.contribute(block, state, LowerForward(0, 0))
    _, again = bambi.contribute(block, state, LowerForward(0, 0))
    np.testing.assert_array_equal(first, again)
    bambi.apply(block, asked, Gradient(theta=theta(block, (1, 12))))
    with pytest.raises(LedgerConflict):
        bambi.apply(block, asked, Gradient(theta=-theta(block, (1, 12))))
    with pytest.raises(LedgerConflict):
        bambi.contribute(block, state._replace(y=state.y + np.arange(state.y.shape[-1])), LowerForward(0, 0))


def test_a_round_that_nobody_accounted_for_is_refused():
    block = block_with_noise(opened())
    state = bambi.start(block)
    for ask in (LowerForward(3, 0), LowerForward(9, 0)):
        with pytest.raises(RoundNotDue):
            bambi.contribute(block, state, ask)
    with pytest.raises(RoundNotDue, match="held-out rows alone"):
        bambi.contribute(block, state, RowsForward("all", 0, 5))
    with pytest.raises(RoundNotDue, match="held-out rows alone"):
        bambi.contribute(block, state, RowsForward("lower", 0, 5))


def test_held_out_rows_are_looked_at_as_often_as_was_promised_and_in_any_pieces():
    block = block_with_noise(opened())
    state = bambi.start(block)
    state = state._replace(y=state.y + 0.1)
    _, whole = bambi.contribute(block, state, RowsForward("test", 0, 10))
    _, piece = bambi.contribute(block, state, RowsForward("test", 3, 4))
    np.testing.assert_array_equal(whole.reshape(10, -1)[3:7], piece.reshape(4, -1))
    with pytest.raises(BudgetExhausted, match="with 1 models, which was all"):
        bambi.contribute(block, state._replace(y=state.y + 0.1), RowsForward("test", 0, 10))


def test_predictions_are_noised_once_and_paid_for_once():
    book = scratch_ledger()
    model = {"y": torch.ones((WIDTH, OUTPUTS), dtype=torch.float64)}

    def predicted():
        found = opened(predicts=True, ledger=book)
        role = predictor(replace(begun(found), upper_sizes=(0, 0, 0)), model)
        return role.plan(role.begin(None), (None, RowsForward("all", 0, ROWS))).draft

    first = predicted()
    np.testing.assert_array_equal(first, predicted())
    assert np.abs(first).max() > 1.0  # 0.5 and noise of about as much
    account = book.account("features/train", DatasetTerms(20.0, 1e-6, changed="charge"))
    assert account.records == ROWS
    assert account.epsilon == pytest.approx(8, rel=1e-2)


def test_an_owner_whose_budget_is_smaller_refuses_before_anything_is_written():
    found = opened(owner=5.0)
    with pytest.raises(BudgetExhausted):
        accept(found)
    assert found.privacy().ledger.datasets() == []
    offer = accept(opened(owner=9.0))
    assert not offer.coverage.exact
    assert offer.coverage.honest == 2
    assert "a row costs ε = 8" in offer.warnings[0]


def test_gradients_of_single_rows_add_up_to_the_gradient_of_all():
    model = build_model("mlp", 4, 3, (5,), "tanh", dtype=torch.float64)
    x = model.initial(np.random.default_rng(0)).requires_grad_()
    a, weights = torch.randn(6, 4, dtype=torch.float64), torch.randn(6, 3, dtype=torch.float64)
    (whole,) = torch.autograd.grad(model.apply(x, a), x, weights)
    np.testing.assert_allclose(model.row_gradients(x.detach(), a, weights).sum(0), whole, atol=1e-12)


@pytest.mark.parametrize(
    ("train", "told"),
    [
        ("hypergradient: implicit", "noises gradient steps"),
        ("hypergradient: local", "noises gradient steps"),
        ("problem: joint, model: {kind: cnn, image_shape: [2, 2]}", "every single row"),
    ],
)
def test_ways_to_learn_that_are_not_covered_are_refused(train, told):
    text = SPEC.format(train="TRAIN", model="{kind: identity}", epsilon=8, upper="lower")
    text = text.replace("model: {kind: identity}, TRAIN" if "model" in train else "TRAIN", train)
    with pytest.raises(SpecInvalid, match=told):
        parse_spec(text)


@pytest.mark.parametrize(
    ("privacy", "train", "told"),
    [
        ("{features: {kind: per_sum}}", "{algorithm: glm}", "take `kind: once`"),
        ("{features: {kind: per_sum, honest: 4}}", f"{{algorithm: bambi, {JOINT}}}", "lists 3"),
        ("{features: {kind: per_sum}, aggregation: {kind: plain}}", f"{{algorithm: bambi, {JOINT}}}", "honest: 1"),
        ("{features: {kind: once, honest: 3}}", f"{{algorithm: bambi, {JOINT}}}", "are for `kind: per_sum`"),
    ],
)
def test_settings_that_do_not_fit_are_refused(privacy, train, told):
    with pytest.raises(SpecInvalid, match=told):
        parse_spec(f"name: r\nparties: [a, b, c]\ntrain: {train}\nprivacy: {privacy}\n")
