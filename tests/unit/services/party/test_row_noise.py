"""Rows of a session: noised where the spec asks for it, charged once, refused when the owner's budget is spent."""

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from parley.party.roles import Coverage, LocalPrivacy, Offer
from parley.privacy.dataset_ledger import DatasetTerms
from parley.privacy.feature_noise import RowNoise
from parley.privacy.ledger import BudgetExhausted, open_ledger
from parley.privacy.noise import KeyedNoise
from parley.services.party import row_noise
from parley.services.party.config import Policy
from parley.services.party.policy import PolicyRefused, check_coverage, covered_by_noise
from parley.services.party.row_noise import RowProtection, TableTooWide, account_name, note_exact_runs
from parley.spec.parsing import parse_spec
from parley.spec.protection import FeaturePrivacySpec
from parley.tables.loading import Table

KEY, TERMS = KeyedNoise(bytes(32)), DatasetTerms(10.0, 1e-6, changed="charge")
ROWS = np.random.default_rng(0).standard_normal((50, 3))
ONCE = FeaturePrivacySpec(kind="once", epsilon=4.0, bound=2.0)
ACCOUNT = account_name("train")


def table(rows=ROWS, columns=("a", "b", "c"), name="train"):
    return Table(np.array([f"r{row}" for row in range(rows.shape[0])]), rows, list(columns), name)


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/party.db"


@pytest.fixture
def ledger(url):
    book = open_ledger(url)
    yield book
    book.close()


def protection(ledger, run="run-1", settings=ONCE, terms=TERMS):
    return RowProtection(settings, run, ("a", "b"), lambda: LocalPrivacy(ledger, KEY, 10.0), terms)


def trained(ledger, run="run-1", settings=ONCE, terms=TERMS, rows=ROWS, **changes):
    """What a run sees of the table."""
    session = protection(ledger, run, settings, terms)
    seen = session.protect(table(rows, **changes))
    session.pay()
    return seen.features


def spent(ledger, terms=TERMS):
    return ledger.account(ACCOUNT, terms).epsilon


def test_without_noise_a_table_passes_as_it_is_and_no_ledger_is_opened():
    def never():
        raise AssertionError("opened")

    session = RowProtection(FeaturePrivacySpec(), "run-1", (), never, TERMS)
    clear = table()
    assert session.protect(clear) is clear
    session.pay()


def test_fifty_runs_see_the_same_rows_and_cost_what_one_costs(ledger):
    first = trained(ledger)
    for number in range(2, 51):
        np.testing.assert_array_equal(trained(ledger, f"run-{number}"), first)
    account = ledger.account(ACCOUNT, TERMS)
    assert account.epsilon == pytest.approx(4.0, rel=1e-6)
    assert account.records == 50
    assert [run for run, cost in account.by_run.items() if cost] == [next(iter(account.by_run))]
    ledger.verify_account(ACCOUNT)


def test_noise_and_account_outlast_a_restart(ledger, url):
    first = trained(ledger)
    ledger.close()
    again = open_ledger(url)
    np.testing.assert_array_equal(trained(again, "run-2"), first)
    assert spent(again) == pytest.approx(4.0, rel=1e-6)
    again.close()


def test_another_epsilon_composes_and_is_refused_when_the_budget_is_spent(ledger):
    trained(ledger)
    trained(ledger, "run-2", ONCE.model_copy(update={"epsilon": 5.0}))
    both = spent(ledger)
    assert 5.0 < both < 9.0
    greedy = ONCE.model_copy(update={"epsilon": 9.0})
    session = protection(ledger, "run-3", greedy)
    with pytest.raises(BudgetExhausted, match=r"features/train.*past its budget of 10"):
        session.protect(table())
    assert spent(ledger) == both
    assert len(trained(ledger, "run-4")) == 50  # the noise that is drawn already is still there to use


def test_looking_costs_nothing_before_the_run_begins(ledger):
    protection(ledger).protect(table())
    assert ledger.datasets() == []
    assert ledger.runs() == {}


def test_what_another_run_spent_between_opening_and_beginning_counts(ledger):
    tight = DatasetTerms(6.0, 1e-6, changed="charge")
    waiting = protection(ledger, "waiting", terms=tight)
    waiting.protect(table())
    trained(ledger, "other", ONCE.model_copy(update={"epsilon": 5.5}), tight)
    with pytest.raises(BudgetExhausted):
        waiting.pay()


def test_what_is_read_after_the_beginning_is_paid_at_once(ledger):
    session = protection(ledger)
    session.protect(table())
    session.pay()
    session.protect(table(name="checked"))
    assert ledger.account(account_name("checked"), TERMS).epsilon == pytest.approx(4.0, rel=1e-6)


def test_a_row_that_has_changed_is_charged_again_and_the_others_are_not(ledger):
    trained(ledger)
    rows = ROWS.copy()
    rows[3, 1] += 0.5
    trained(ledger, "run-2", rows=rows)
    assert ledger.account(ACCOUNT, TERMS).records == 51
    assert 4.0 < spent(ledger) < 8.0  # two draws about one person
    rows[4, 1] += 0.5  # another person: nobody has three
    before = spent(ledger)
    trained(ledger, "run-3", rows=rows)
    assert spent(ledger) == before


def test_another_view_of_the_rows_is_another_draw_in_the_same_account(ledger):
    trained(ledger)
    trained(ledger, "run-2", rows=ROWS[:, :2], columns=("a", "b"))
    assert 4.0 < spent(ledger) < 8.0


def test_another_key_is_charged_on_top(ledger):
    trained(ledger)
    other = RowProtection(ONCE, "run-2", (), lambda: LocalPrivacy(ledger, KeyedNoise(b"k" * 32), 10.0), TERMS)
    other.protect(table())
    other.pay()
    assert spent(ledger) > 4.5


def test_a_session_that_opens_again_is_charged_once(ledger):
    trained(ledger)
    trained(ledger)
    assert spent(ledger) == pytest.approx(4.0, rel=1e-6)
    assert len(ledger.runs()) == 1


def test_rows_beyond_the_bound_are_clipped_before_they_are_noised(ledger):
    mechanism = RowNoise(ONCE.epsilon, ONCE.delta, ONCE.bound)
    far = trained(ledger, rows=1e6 * ROWS)
    assert np.abs(far - mechanism.clipped(1e6 * ROWS)).max() < 6 * mechanism.sigma(3)


def test_noise_fills_a_sparse_table_if_it_fits(ledger, monkeypatch):
    sparse = csr_matrix(np.where(ROWS > 1, ROWS, 0.0))
    assert isinstance(trained(ledger, rows=sparse), np.ndarray)
    monkeypatch.setattr(row_noise, "MOST_VALUES", 100)
    with pytest.raises(TableTooWide, match="sparse"):
        protection(ledger).protect(table(sparse))


def test_runs_that_saw_the_rows_without_noise_stand_in_the_account(ledger):
    note_exact_runs(ledger, "train", {"before": ("a",)}, TERMS)
    assert ledger.datasets() == []  # a table that nobody noises has no account
    trained(ledger)
    for _ in range(2):
        note_exact_runs(ledger, "train", {"before": ("a",), "run-1": ("a",)}, TERMS)
    assert ledger.account(ACCOUNT, TERMS).unprotected_runs == ("before/features/train/exact",)
    assert spent(ledger) == pytest.approx(4.0, rel=1e-6)


def test_noise_on_rows_leaves_the_budget_of_local_privacy_alone(ledger):
    trained(ledger)
    assert ledger.allotted(but="") == 0.0


SPEC = "name: t\nparties: [a, b, c]\ntrain: {{algorithm: {}}}\nprivacy: {{features: {{kind: {}}}}}\n"
TASK = "fedbio, task: {kind: data_cleaning, classes: ['0', '1'], checked: checked}"


def policy(**features):
    return Policy(coordinators=("hub",), algorithms=("bambi", "fedbio"), features=features)


def covered(algorithm, kind):
    spec = parse_spec(SPEC.format(algorithm, kind))
    return spec, covered_by_noise(Offer(coverage=Coverage(rows=100, batch=50, sums=3)), spec).coverage


def test_an_owner_can_demand_noise_on_rows_and_the_refusal_says_how():
    spec, exact = covered("bambi", "none")
    check_coverage(policy(), spec, 0, exact)
    with pytest.raises(PolicyRefused, match=r"table train would leave without noise, and `features.required` is on"):
        check_coverage(policy(required=True), spec, 0, exact)
    spec, noised = covered("bambi", "once")
    check_coverage(policy(required=True), spec, 0, noised)


def test_noised_rows_make_sums_inexact_except_where_labels_go_into_them():
    assert covered("bambi", "none")[1].exact
    assert not covered("bambi", "once")[1].exact
    assert covered(TASK, "once")[1].exact
