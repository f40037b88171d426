"""The account of a data set, on SQLite and PostgreSQL."""

import math
import threading

import numpy as np
import pytest
import sqlalchemy as sa

from parley.privacy.accounting import LaplaceLabels, RandomisedResponse, RecordCounts, Unprotected
from parley.privacy.dataset_ledger import (
    AccountBroken,
    DatasetCharge,
    DatasetTerms,
    DatasetUnknown,
    RecordsChanged,
    UnprotectedRefused,
)
from parley.privacy.filters import filtered_epsilon
from parley.privacy.ledger import Budget, BudgetExhausted, Charge, LedgerConflict, heads, open_ledger
from parley.privacy.ledger_tables import account_counters, account_entries, account_heads
from parley.privacy.noise import KeyedNoise
from parley.privacy.permanent_noise import class_tags, tag_records

RR = RandomisedResponse(3.0, 10)
TERMS = DatasetTerms(epsilon=10.0, delta=0.0)
CLASSES = tuple("0123456789")
VALUES = [1, 2, 3, 4, 5]


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/ledger.db"
    return request.getfixturevalue("postgres_database")


@pytest.fixture
def ledger(url):
    book = open_ledger(url)
    yield book
    book.close()


def execute(url, statement):
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(statement)
    engine.dispose()


def tags_of(values=VALUES, first=0):
    ids = [f"r{first + row}" for row in range(len(values))]
    return tag_records(KeyedNoise(bytes(32)), "train", ids, class_tags(CLASSES, np.array(values)))


def reserve(ledger, run, *, event=RR, draw="d", terms=TERMS, tags=None, counts=None, first=0):
    tags = tags_of() if tags is None else tags
    counts = np.ones(len(tags), np.int64) if counts is None else np.array(counts)
    ledger.open_run(run, len(tags), Budget(math.inf), dataset="train")
    account = DatasetCharge(terms, tags, draw)
    return ledger.reserve(run, first, int(counts.max()), Charge(event, ("a",), RecordCounts(counts), account=account))


def spent(ledger, terms=TERMS):
    return ledger.account("train", terms).epsilon


def test_noise_that_is_drawn_once_is_paid_for_once(ledger):
    reserve(ledger, "one")
    reserve(ledger, "two")
    account = ledger.account("train", TERMS)
    assert (account.epsilon, account.records, account.by_run) == (3.0, 5, {"one": 3.0, "two": 0.0})


def test_records_that_are_new_are_charged_and_the_most_charged_one_counts(ledger):
    reserve(ledger, "one", tags=tags_of([1, 2, 3]))
    reserve(ledger, "two", tags=tags_of([3, 4, 5], first=2))  # r2 is in both
    account = ledger.account("train", TERMS)
    assert (account.epsilon, account.records) == (3.0, 5)


def test_another_draw_is_charged_on_top(ledger):
    reserve(ledger, "one")
    reserve(ledger, "two", event=RandomisedResponse(1.0, 10), draw="e")
    reserve(ledger, "three", draw="the same, of other classes")
    assert spent(ledger) == pytest.approx(7.0)


def test_fresh_noise_is_charged_for_every_release_of_every_run(ledger):
    event = LaplaceLabels(0.5, 10)
    reserve(ledger, "one", event=event, draw="", counts=[4, 3, 0, 0, 1])
    reserve(ledger, "two", event=event, draw="", counts=[0, 2, 3, 0, 0])
    assert spent(ledger) == pytest.approx(2.5)  # r1: 3 + 2 releases


def test_a_charge_past_the_budget_leaves_neither_run_nor_data_set_with_a_trace(ledger):
    reserve(ledger, "one")
    with pytest.raises(BudgetExhausted, match="past its budget of 10"):
        reserve(ledger, "two", event=RandomisedResponse(7.5, 10), draw="e")
    assert spent(ledger) == 3.0
    assert ledger.entries("two") == []
    reserve(ledger, "two", event=RandomisedResponse(7.0, 10), draw="e")
    assert spent(ledger) == 10.0
    reserve(ledger, "three")  # spent, but this noise is drawn already


def test_a_replayed_reservation_is_charged_once(ledger, url):
    event = LaplaceLabels(0.5, 10)
    reserve(ledger, "one", event=event, draw="")
    other = open_ledger(url)
    reserve(other, "one", event=event, draw="")
    other.close()
    assert spent(ledger) == 0.5


def test_a_label_that_changed_is_refused_and_nothing_is_spent(ledger):
    reserve(ledger, "one")
    with pytest.raises(RecordsChanged, match="2 records of 'train' were released with another label"):
        reserve(ledger, "two", tags=tags_of([1, 2, 3, 9, 9]))
    assert (spent(ledger), ledger.entries("two")) == (3.0, [])
    reserve(ledger, "three", tags=tags_of([1, 2, 3, 9, 9]), counts=[1, 1, 1, 0, 0])  # they may be left out


def test_a_label_that_changed_is_charged_twice_where_the_owner_says_so(ledger):
    lenient = DatasetTerms(epsilon=10.0, delta=0.0, changed="charge")
    reserve(ledger, "one", terms=lenient)
    reserve(ledger, "two", terms=lenient, tags=tags_of([1, 2, 3, 4, 9]))
    assert spent(ledger) == 6.0  # r4 under two labels
    reserve(ledger, "three", terms=lenient, tags=tags_of([1, 2, 3, 4, 9]))
    assert spent(ledger) == 6.0


def test_releases_without_noise_are_told_for_ever_or_refused(ledger):
    reserve(ledger, "one")
    reserve(ledger, "open", event=Unprotected(), draw="")
    reserve(ledger, "open", event=Unprotected(), draw="", first=1)
    account = ledger.account("train", TERMS)
    assert (account.epsilon, account.unprotected_runs) == (3.0, ("open",))
    with pytest.raises(UnprotectedRefused, match="without noise"):
        reserve(ledger, "closed", event=Unprotected(), draw="", terms=DatasetTerms(unprotected="refuse"))
    assert ledger.entries("closed") == []


def test_the_filter_takes_the_better_of_pure_and_renyi():
    from parley.privacy.accounting import Composed

    many = Composed(LaplaceLabels(0.1, 2), 200)
    assert filtered_epsilon(many, 10.0, 0.0) == pytest.approx(20.0)
    assert 5.0 < filtered_epsilon(many, 10.0, 1e-6) < 10.0
    assert filtered_epsilon(Composed(RR, 1), 10.0, 1e-6) == 3.0


def test_two_that_start_at_once_are_both_counted(ledger, url):
    failures = []

    def run(number):
        own = open_ledger(url)
        try:
            reserve(own, f"run-{number}", event=LaplaceLabels(1.0, 10), draw="")
        except Exception as error:
            failures.append(error)
        own.close()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert spent(ledger) == pytest.approx(6.0)
    ledger.verify_account("train")


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        (account_entries.update().where(account_entries.c.sequence == 0).values(epsilon=0.1), "entry 0 was changed"),
        (account_entries.delete().where(account_entries.c.sequence == 1), "ends after 1 entries, not 2"),
        (account_entries.delete().where(account_entries.c.sequence == 0), "entry 0 does not follow"),
        (account_counters.delete(), "counters are not those of entry 1"),
        (account_heads.update().values(length=5), "ends after 2 entries, not 5"),
    ],
    ids=["changed entry", "cut tail", "cut head", "counters", "length"],
)
def test_an_account_that_was_tampered_with_does_not_verify(ledger, url, statement, message):
    reserve(ledger, "one")
    reserve(ledger, "two")
    ledger.verify_account("train")
    execute(url, statement)
    with pytest.raises(AccountBroken, match=message):
        ledger.verify_account("train")


def test_a_data_set_that_nobody_used_has_no_account(ledger):
    with pytest.raises(DatasetUnknown, match="no data set 'spring'"):
        ledger.account("spring", TERMS)
    assert ledger.datasets() == []


def test_a_run_of_an_earlier_version_does_not_go_on_with_other_noise(ledger, url):
    reserve(ledger, "old")
    execute(url, heads.update().values(dataset=None))
    with pytest.raises(LedgerConflict, match="began under a version that drew label noise for each run"):
        ledger.open_run("old", 5, Budget(math.inf), dataset="train")
    ledger.open_run("moved", 5, Budget(1.0), dataset="spring")
    with pytest.raises(LedgerConflict, match="charged to 'spring', not to 'train'"):
        ledger.open_run("moved", 5, Budget(1.0), dataset="train")
