"""A party's part: independent columns, secret weights that follow from key and run, coefficients read back."""

import numpy as np
import pytest

from parley.party.glm import steps
from parley.party.glm.role import ColumnsUnscaled, GlmRole, _check_scale, accept
from parley.party.roles import Opened
from parley.privacy.noise import KeyedNoise
from parley.protocols.glm.messages import GlmRound, Solution, columns_of, mixtures
from parley.protocols.tensor.codec import MessageInvalid
from parley.services.party.tables import TableStore
from parley.spec.parsing import parse_spec
from parley.spec.rows import RowSets
from parley.tables.loading import Table
from parley.tables.rows import LocalRows

DRAW = np.random.default_rng(0)
X = DRAW.standard_normal((40, 3)) * [1.0, 50.0, 0.01]
NOISE = KeyedNoise(b"k" * 32)


def block(key=b"k", run="run-1", party="bank"):
    return steps.block(X, KeyedNoise(key * 32), run, party, mixtures(5), carries_intercept=True)


def test_constant_and_dependent_columns_are_told_from_others():
    wide = np.column_stack([X, np.full(40, 3.0), X[:, 0] - 2 * X[:, 1] + 5, X[:, 2] ** 2, np.zeros(40)])
    assert steps.independent_columns(wide).tolist() == [True, True, True, False, False, True, False]
    every = np.eye(3)[np.arange(40) % 3]  # one column for each of three categories: together they are the constant
    assert steps.independent_columns(every).tolist() == [True, True, False]


def test_secret_weights_follow_from_key_run_and_party_and_from_nothing_else():
    assert np.array_equal(block().weights, block().weights)
    for other in (block(key=b"l"), block(run="run-2"), block(party="shop")):
        assert not np.isclose(other.weights, block().weights).any()


def test_secret_weights_are_normal():
    drawn = steps.secret_gaussians(NOISE, "run", "bank", 200, 200)
    # 40 000 draws: mean and variance lie within these bounds but for a chance below 1e-6
    assert abs(drawn.mean()) < 0.025
    assert abs(drawn.var() - 1) < 0.036
    assert abs(np.corrcoef(drawn[:, 0], drawn[:, 1])[0, 1]) < 0.4


def test_mixtures_are_of_the_columns_and_say_nothing_of_their_scale():
    party = block()
    np.testing.assert_allclose(steps.design(party, 5, 10), X[5:15] @ party.mixing, 1e-9)
    scaled = steps.block(X * [1e3, 1e-3, 1.0], NOISE, "run-1", "bank", mixtures(5), carries_intercept=True)
    np.testing.assert_allclose(steps.design(scaled, 0, 40), steps.design(party, 0, 40), 1e-9)


def test_a_solution_is_read_back_as_coefficients_with_the_covariance_of_the_partys_own_block():
    party, u = block(), DRAW.standard_normal(mixtures(5) + 1)
    root = DRAW.standard_normal((len(u), len(u)))
    state = steps.State(np.zeros(4), np.full(4, np.nan), np.full(3, np.nan))
    found = steps.solved(party, state, Solution(u, root @ root.T, 7.0))
    np.testing.assert_allclose(found.weights, [*(party.mixing @ u[:-1]), u[-1]])
    own = party.mixing @ (root @ root.T)[:-1, :-1] @ party.mixing.T
    np.testing.assert_allclose(found.standard_errors[:3], np.sqrt(np.diag(own)))
    assert (found.freedom, found.k) == (7.0, 1)


def test_how_many_columns_there_are_follows_from_the_number_of_mixtures():
    assert [columns_of(mixtures(columns)) for columns in range(1, 300)] == list(range(1, 300))


def role(threshold=0.0):
    nothing = np.empty(0, dtype=np.int64)
    return GlmRole(X, RowSets(np.arange(30), nothing, np.arange(30, 40)), block(), threshold)


def test_training_rows_leave_once_and_in_order_and_are_counted_with_their_mixtures():
    party = role()
    first = party.plan(party.begin(None), GlmRound("design", first=0, count=25))
    assert first.row_sums == mixtures(5)
    with pytest.raises(MessageInvalid, match="in order"):
        party.plan(first.state, GlmRound("design", first=0, count=25))
    rest = party.plan(first.state, GlmRound("design", first=25, count=15))
    assert rest.row_sums == 0
    with pytest.raises(MessageInvalid, match="in order"):
        party.plan(rest.state, GlmRound("design", first=40, count=1))


@pytest.mark.parametrize(
    "asked",
    [
        GlmRound("shrink", solution=Solution(np.zeros(mixtures(5) + 1)), tie=1.0),
        GlmRound("finish", solution=Solution(np.zeros(3))),
        GlmRound("finish", solution=Solution(np.zeros(mixtures(5) + 1), np.eye(2))),
        GlmRound("evaluate", first=5, count=6),
        GlmRound("evaluate"),
        GlmRound("checkpoint", 3),
    ],
)
def test_what_does_not_fit_is_refused(asked):
    party = role()
    with pytest.raises(MessageInvalid):
        party.plan(party.begin(None), asked)


def test_a_party_says_the_same_of_its_columns_whichever_rows_are_asked_for():
    """One row alone has the attribute: sessions over rows with it and without it would tell whose it is."""
    rare = np.zeros((80, 2))
    rare[:, 0], rare[40, 1] = np.arange(80), 1.0
    table = Table(np.array([f"{row:02}" for row in range(80)]), rare, ["age", "rare"], "train")

    def offered(rows):
        split = f'split: {{lower: "{rows}", upper: lower, test: 0}}'
        spec = parse_spec(f"name: g\nparties: [a, b, c]\ntrain: {{algorithm: glm}}\n{split}")
        offer = accept(Opened(spec, 0, "run", "session", table, TableStore({})))
        return offer.upper_size, offer.warnings, offer.coverage.rank

    assert offered("0:40") == offered("1:41") == (2, (), 2)


def test_with_a_penalty_a_nearly_repeated_column_is_left_out_and_the_rest_fits_a_sum():
    """The same amount in another currency, rounded: its weights would be as large as the rounding is small."""
    plain = X / X.std(axis=0)
    twice = np.column_stack([plain, plain[:, 0] * 1.1 + np.random.default_rng(3).normal(size=len(X)) * 1e-5])
    assert steps.independent_columns(twice).tolist() == [True] * 4
    block = steps.block(
        twice, NOISE, "run-1", "bank", mixtures(5), carries_intercept=True, least=steps.NEARLY_DEPENDENT
    )
    assert not block.mixing[3].any()
    _check_scale(block)
    with pytest.raises(ColumnsUnscaled):
        _check_scale(steps.block(twice, NOISE, "run-1", "bank", mixtures(5), carries_intercept=True))


@pytest.mark.parametrize("shard", [1, 7, 1000])
def test_columns_that_are_read_in_shards_are_mixed_as_all_at_once(shard):
    drawn = np.random.default_rng(5).standard_normal((200, 4))
    features = np.column_stack([drawn, np.ones(200), drawn[:, 0] - 2 * drawn[:, 1], 1e4 * drawn[:, 2] + drawn[:, 3]])
    rows = np.arange(0, 200, 2)
    noise = KeyedNoise(b"k" * 32)
    whole = steps.block(features[rows], noise, "run", "bank", 9, carries_intercept=True)
    mapped = steps.MappedRows(LocalRows(features, shard=shard), rows)
    parts = steps.block(mapped, noise, "run", "bank", 9, carries_intercept=True)
    np.testing.assert_array_equal(np.abs(parts.mixing).sum(axis=1) > 0, [1, 1, 1, 1, 0, 0, 0])
    np.testing.assert_allclose(parts.spread, whole.spread)
    signs = np.sign(np.diag(whole.basis.T @ parts.basis[:]))  # a column of Q may point the other way
    np.testing.assert_allclose(parts.basis[10:30] * signs, whole.basis[10:30], atol=1e-9)
    np.testing.assert_allclose(steps.design(parts, 10, 20), features[rows[10:30]] @ parts.mixing, atol=1e-7)


def test_a_table_of_constant_columns_has_nothing_to_mix_in_shards_either():
    mapped = steps.MappedRows(LocalRows(np.ones((20, 2)), shard=7))
    party = steps.block(mapped, KeyedNoise(b"k" * 32), "run", "bank", 3, carries_intercept=False)
    assert not steps.design(party, 5, 9).any()
