"""FedBiO with a bound for each record: the plain step without clipping and noise, and never more than it charges."""

from dataclasses import replace

import numpy as np
import pytest

from parley.party.fedbio.objectives import DataCleaning
from parley.party.fedbio.record_privacy import PrivateParty, private_party
from parley.party.fedbio.role import accept, settings_of
from parley.party.fedbio.steps import Party, Randomness, RoundMismatch
from parley.party.fedbio.tasks import task_of
from parley.party.roles import LocalPrivacy, Opened
from parley.privacy.dataset_ledger import BudgetExhausted, DatasetTerms
from parley.privacy.ledger import LedgerConflict
from parley.privacy.noise import KeyedNoise
from parley.protocols.fedbio.messages import AveragingRound
from parley.simulation.runs import scratch_ledger
from parley.spec.parsing import SpecInvalid, parse_spec
from parley.tables.loading import Labels, Table

ROWS, WIDTH = 60, 4
SPEC = """
name: private
dtype: float64
parties: [north, south, west]
train:
  algorithm: fedbio
  accelerated: false
  local_steps: 1
  rounds: 6
  batch: 20
  checked_batch: 10
  eta: 1.0
  task: {{kind: data_cleaning, classes: ["0", "1", "2"], checked: 0.3, hidden: [5]}}
  record_privacy: {{epsilon: {epsilon}, clip: {clip}, noise: {noise}}}
evaluate_every: 3
"""


class Labelled:
    """The labels of the table."""

    def __init__(self, table):
        self._table = table

    def labels(self, name, classes=None, kind="classes"):
        values = np.random.default_rng(7).integers(0, 3, ROWS)
        return Labels(self._table.ids, values, tuple(classes))

    def load_like(self, name, other):
        raise AssertionError("no other table is read")


def opened(epsilon=16, clip=1.0, noise=8.0, rows=None, owner=None, ledger=None):
    values = np.random.default_rng(3).standard_normal((ROWS, WIDTH)) if rows is None else rows
    table = Table(np.array([f"r{row:02d}" for row in range(ROWS)]), values, list("abcd"), "train")
    book = ledger or scratch_ledger()
    terms = owner or DatasetTerms(20.0, 1e-6, changed="charge")
    privacy = LocalPrivacy(book, KeyedNoise(bytes(32)), 10.0, terms)
    spec = parse_spec(SPEC.format(epsilon=epsilon, clip=clip, noise=noise))
    return Opened(spec, 0, "run-1", "s-1", table, Labelled(table), privacy=lambda: privacy)


RANDOM = Randomness(0, "north")


def private(session) -> PrivateParty:
    return private_party(session, task_of(session), settings_of(session.spec.train), RANDOM)


def started(party, seed=2):
    x = np.zeros(party.objective.upper_size)
    state = party.start(x, np.random.default_rng(seed).standard_normal(party.objective.lower_size))
    return replace(state, variables=replace(state.variables, u=np.full(state.variables.y.size, 0.1)))


def asked(phase, k, mean=None):
    return AveragingRound(phase, k, (0, 1, 2), mean)


def test_each_records_terms_add_up_to_those_of_the_batch():
    objective = task_of(opened()).objective
    assert isinstance(objective, DataCleaning)
    draw = np.random.default_rng(0)
    x, (y, v) = draw.standard_normal(objective.upper_size), draw.standard_normal((2, objective.lower_size))
    rows = np.arange(3, 17)
    gradients, products = objective.record_terms(x, y, v, rows)
    whole = objective.lower_terms(x, y, v, rows)
    np.testing.assert_allclose(gradients.mean(axis=0) + objective.ridge * y, whole.gradient, atol=1e-12)
    np.testing.assert_allclose(products.mean(axis=0) + objective.ridge * v, whole.hessian, atol=1e-12)
    checked = objective.checked_gradients(y, rows)
    np.testing.assert_allclose(checked.mean(axis=0), objective.upper_gradients(x, y, rows).y, atol=1e-12)
    losses, mistakes = objective.checked_losses(y)
    measured = objective.measure(x, y)
    np.testing.assert_allclose([losses.sum(), mistakes.sum()], measured[:2], rtol=1e-12)


def test_without_clipping_and_with_next_to_no_noise_it_is_the_plain_step():
    noisy = private(opened(clip=1e4, noise=1e-5))
    state = started(noisy)
    plain, expected = Party(noisy.settings, noisy.objective).contribute(state, asked("variables", 0), RANDOM)
    x, value = noisy._moved(state.variables, 0, RANDOM)
    noised = noisy.averages.noised(value, KeyedNoise(bytes(32)), "run-1", 0)
    np.testing.assert_allclose(value, expected, atol=40 * noisy.averages.step)  # 30 records were cut off to the grid
    np.testing.assert_allclose(noised, expected, atol=0.1)
    np.testing.assert_allclose(x, plain.variables.x, atol=1e-12)


def test_replacing_a_record_moves_the_value_by_no_more_than_the_noise_is_made_for():
    rows = np.random.default_rng(3).standard_normal((ROWS, WIDTH))
    ledger = scratch_ledger()
    base = private(opened(rows=rows, ledger=ledger))
    _, before = base._moved(started(base).variables, 0, RANDOM)
    moved = []
    for row in range(ROWS):
        changed = rows.copy()
        changed[row] = -50 * rows[row]
        party = private(opened(rows=changed, ledger=ledger))
        moved.append(np.linalg.norm(party._moved(started(party).variables, 0, RANDOM)[1] - before))
    assert max(moved) <= base.averages.sensitivity
    assert max(moved) > 0.5 * base.averages.sensitivity  # the bound is not idle
    assert moved.count(0.0) == ROWS - 20 - 10  # rows that are in no batch of the round


def test_a_run_is_charged_by_the_sums_that_its_records_are_in():
    session = opened()
    party = private(session)
    assert party.releases.sums == 6 + 2
    assert party.releases.counts.counts.sum() == 6 * (20 + 10) + 2 * 18
    party.releases.open()
    account = session.privacy().ledger.account("features/train", session.privacy().rows)
    assert account.epsilon == pytest.approx(party.releases.epsilon, rel=1e-6)
    party.releases.open()  # a resumed run
    assert session.privacy().ledger.account("features/train", session.privacy().rows).epsilon == account.epsilon


def test_a_run_past_its_own_epsilon_or_the_owners_is_refused_before_anything_is_charged():
    greedy = opened(epsilon=0.5)
    with pytest.raises(BudgetExhausted, match=r"past the run's 0.5: raise the noise"):
        accept(greedy)
    closed = opened(owner=DatasetTerms(0.5, 1e-6, changed="charge"))
    with pytest.raises(BudgetExhausted, match="features/train"):
        accept(closed)
    assert closed.privacy().ledger.datasets() == []


def test_it_is_no_exact_release_and_says_what_a_record_costs():
    offer = accept(opened())
    assert not offer.coverage.exact
    assert "one record costs ε = " in offer.warnings[0]


def test_a_round_that_is_made_again_leaves_the_same_bytes_or_nothing():
    session = opened()
    party = private(session)
    party.releases.open()
    _, value = party.contribute(started(party), asked("variables", 0), RANDOM)
    _, again = private(session).contribute(started(party), asked("variables", 0), RANDOM)
    np.testing.assert_array_equal(value, again)
    with pytest.raises(LedgerConflict):
        party.contribute(started(party, seed=9), asked("variables", 0), RANDOM)


def test_nothing_is_released_that_was_not_accounted_for():
    party = private(opened())
    party.releases.open()
    with pytest.raises(RoundMismatch, match="6 rounds were accounted for"):
        party.contribute(started(party), asked("variables", 6, np.zeros(2 * party.objective.lower_size)), RANDOM)
    with pytest.raises(RoundMismatch, match="not due"):
        party.contribute(started(party), asked("evaluate", 0), RANDOM)


def test_metrics_carry_noise_and_are_about_right():
    party = private(opened(noise=2.0))
    party.releases.open()
    state = started(party)
    _, noisy = party.contribute(state, asked("evaluate", 2), RANDOM)
    exact = party.objective.measure(state.variables.x, state.variables.y).vector()
    assert noisy[2] == exact[2]
    assert 0 < abs(noisy[1] - exact[1]) < 6 * 2.0 * 4 / 1024
    assert not noisy[5:].any()


@pytest.mark.parametrize(
    ("change", "needed"),
    [
        ("local_steps: 1|local_steps: 2", "local_steps: 1"),
        ("accelerated: false|accelerated: true", "accelerated: false"),
        ("evaluate_every: 3|privacy: {aggregation: {kind: plain}}", "not `plain`"),
        ("noise: 8.0|noise: 8.0, honest: 4", "at most 3 parties"),
        ("rounds: 6|rounds: 6\n  parties_per_round: 2", "no `parties_per_round`"),
    ],
)
def test_settings_under_which_the_bound_would_not_hold_are_refused(change, needed):
    before, after = change.split("|")
    text = SPEC.format(epsilon=8, clip=1.0, noise=8.0)
    assert before in text
    with pytest.raises(SpecInvalid, match=needed):
        parse_spec(text.replace(before, after))
