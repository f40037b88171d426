"""One contract for the ledger, run on SQLite and PostgreSQL."""

import multiprocessing
import os
import threading
from datetime import UTC, datetime

import numpy as np
import pytest
import sqlalchemy as sa

from parley.privacy.accounting import (
    LaplaceLabels,
    RandomisedResponse,
    RecordCounts,
    Together,
    UnknownEvent,
    Unprotected,
)
from parley.privacy.ledger import (
    Budget,
    BudgetExhausted,
    Charge,
    Ledger,
    LedgerBroken,
    LedgerConflict,
    RunNotOpen,
    counters,
    entries,
    heads,
    open_ledger,
)

RECORDS = 6
LAPLACE = LaplaceLabels(0.5, 10)


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


def charge(counts=1, event=LAPLACE, recipients=("party-a", "party-b")) -> Charge:
    values = np.broadcast_to(np.asarray(counts, dtype=np.int64), (RECORDS,)).copy()
    return Charge(event, recipients, RecordCounts(values))


def opened(ledger: Ledger, epsilon: float = 100.0, delta: float = 0.0, run: str = "r") -> Ledger:
    ledger.open_run(run, RECORDS, Budget(epsilon, delta))
    return ledger


def execute(url: str, statement: sa.Executable) -> None:
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.execute(statement)
    engine.dispose()


def test_a_reservation_writes_one_row_that_says_what_was_charged(ledger):
    opened(ledger, epsilon=10)
    entry = ledger.reserve("r", 0, 4, charge([4, 3, 2, 1, 0, 0]))
    assert ledger.entries("r") == [entry]
    assert (entry.kind, entry.first_release, entry.release_count) == ("reserve", 0, 4)
    assert (entry.records, entry.largest_count) == (4, 4)
    assert entry.recipients == '["party-a", "party-b"]'
    assert entry.mechanism == '{"classes":10,"epsilon":0.5,"kind":"laplace_labels"}'
    assert entry.epsilon == 2.0
    assert datetime.fromisoformat(entry.time).tzinfo == UTC


def test_covered_releases_are_those_of_the_reserved_blocks(ledger):
    opened(ledger)
    ledger.reserve("r", 10, 5, charge())
    assert [release for release in range(30) if ledger.covers("r", release)] == [10, 11, 12, 13, 14]


def test_a_covered_release_is_known_without_the_database(ledger, url):
    opened(ledger)
    ledger.reserve("r", 0, 1000, charge())
    execute(url, entries.delete())  # whatever it answers now comes from memory
    assert ledger.covers("r", 999)
    assert not ledger.covers("r", 1000)


def test_a_replay_after_a_crash_finds_its_reservation_and_spends_nothing(ledger, url):
    first = opened(ledger).reserve("r", 0, 4, charge(2))
    revived = open_ledger(url)
    assert revived.covers("r", 3)
    assert revived.reserve("r", 0, 4, charge(2)) == first
    assert len(revived.entries("r")) == 1
    assert revived.spent("r") == ledger.spent("r") == 1.0
    revived.close()


def test_the_counters_survive_a_restart_and_go_on_adding(ledger, url):
    opened(ledger).reserve("r", 0, 4, charge([4, 3, 2, 1, 0, 0]))
    revived = open_ledger(url)
    revived.reserve("r", 4, 4, charge([0, 0, 0, 0, 0, 4]))
    (total,) = revived.counts("r").values()
    np.testing.assert_array_equal(total.counts, [4, 3, 2, 1, 0, 4])
    assert revived.spent("r") == 2.0  # the largest count is 4: the other record was not in the second block
    revived.close()


def test_a_charge_past_the_budget_is_refused_before_anything_is_written(ledger):
    opened(ledger, epsilon=1.0).reserve("r", 0, 2, charge(2))
    before = ledger.head("r")
    with pytest.raises(BudgetExhausted, match="budget of 1"):
        ledger.reserve("r", 2, 1, charge(1))
    assert ledger.head("r") == before
    assert not ledger.covers("r", 2)
    assert ledger.spent("r") == 1.0
    ledger.verify("r")


def test_the_budget_may_be_spent_to_its_last_release(ledger):
    opened(ledger, epsilon=1.0)
    ledger.reserve("r", 0, 1, charge(1))
    ledger.reserve("r", 1, 1, charge(1))
    assert ledger.spent("r") == 1.0


def test_a_budget_with_a_delta_buys_more_releases_than_pure_addition(ledger):
    opened(ledger, epsilon=3.0, delta=1e-6)
    tiny = LaplaceLabels(0.01, 10)
    entry = ledger.reserve("r", 0, 5000, charge(5000, event=tiny))
    assert entry.epsilon < 3.0 < 5000 * 0.01
    assert ledger.spent("r") <= entry.epsilon
    with pytest.raises(BudgetExhausted):
        ledger.reserve("r", 5000, 5000, charge(5000, event=tiny))


def test_two_mechanisms_on_one_record_add_up(ledger):
    opened(ledger)
    ledger.reserve("r", 0, 2, charge(2))
    ledger.reserve("r", 2, 1, charge(1, event=RandomisedResponse(1.0, 10)))
    assert ledger.spent("r") == 2.0


def test_unprotected_releases_are_said_to_be_so_and_need_an_infinite_budget(ledger):
    opened(ledger, epsilon=100.0)
    with pytest.raises(BudgetExhausted):
        ledger.reserve("r", 0, 1, charge(event=Unprotected()))
    opened(ledger, epsilon=float("inf"), run="open")
    entry = ledger.reserve("open", 0, 1, charge(event=Unprotected()))
    assert (entry.kind, entry.epsilon) == ("unprotected", float("inf"))
    assert ledger.spent("open") == float("inf")
    ledger.verify("open")


def test_a_block_that_meets_another_charge_is_refused(ledger):
    opened(ledger).reserve("r", 0, 4, charge(1))
    for first, count, other in [
        (2, 4, charge(1)),
        (0, 3, charge(1)),
        (0, 4, charge(2)),
        (0, 4, charge(1, event=LaplaceLabels(0.4, 10))),
        (0, 4, charge(1, recipients=("party-c",))),
        (0, 4, charge([1, 1, 1, 1, 1, 0])),
    ]:
        with pytest.raises(LedgerConflict):
            ledger.reserve("r", first, count, other)
    assert len(ledger.entries("r")) == 1


def test_counts_that_cannot_be_are_refused(ledger):
    opened(ledger)
    with pytest.raises(LedgerConflict, match="count the batches"):
        ledger.reserve("r", 0, 2, charge(3))
    with pytest.raises(LedgerConflict, match="count the batches"):
        ledger.reserve("r", 0, 2, charge([-1, 0, 0, 0, 0, 0]))
    with pytest.raises(LedgerConflict, match="6 records"):
        ledger.reserve("r", 0, 2, Charge(LAPLACE, ("a",), RecordCounts.none(3)))
    with pytest.raises(LedgerConflict, match="at least one"):
        ledger.reserve("r", 0, 0, charge(0))
    assert ledger.entries("r") == []


def test_an_event_without_a_known_cost_is_refused(ledger):
    opened(ledger)
    with pytest.raises(UnknownEvent):
        ledger.reserve("r", 0, 1, charge(event=Together(())))
    assert ledger.entries("r") == []


def test_a_run_must_be_opened_and_keeps_its_terms(ledger):
    with pytest.raises(RunNotOpen, match="open it"):
        ledger.reserve("r", 0, 1, charge())
    with pytest.raises(RunNotOpen):
        ledger.verify("r")
    opened(ledger, epsilon=1.0)
    opened(ledger, epsilon=1.0)
    with pytest.raises(LedgerConflict, match="other terms"):
        opened(ledger, epsilon=2.0)
    with pytest.raises(LedgerConflict, match="epsilon > 0"):
        opened(ledger, epsilon=0.0, run="none")


def test_runs_do_not_share_anything(ledger):
    opened(ledger, epsilon=0.5)
    opened(ledger, epsilon=0.5, run="other")
    ledger.reserve("r", 0, 1, charge())
    ledger.reserve("other", 0, 1, charge())
    assert ledger.spent("r") == ledger.spent("other") == 0.5
    assert ledger.entries("r")[0].hash != ledger.entries("other")[0].hash


def filled(ledger: Ledger) -> Ledger:
    opened(ledger)
    for block in range(4):
        ledger.reserve("r", 3 * block, 3, charge(2))
    ledger.verify("r")
    return ledger


TAMPERED = {
    "time": "2001-01-01T00:00:00+00:00",
    "kind": "reservf",
    "mechanism": '{"classes":10,"epsilon":0.4,"kind":"laplace_labels"}',
    "recipients": '["party-a"]',
    "first_release": 100,
    "release_count": 2,
    "records": 5,
    "epsilon": float(np.nextafter(2.0, 3.0)),
    "delta": 1e-300,
    "largest_count": 3,
    "charge_hash": "0" * 64,
    "counters_hash": "0" * 64,
    "previous_hash": "0" * 64,
    "hash": "0" * 64,
    "run": "s",
    "sequence": 77,
}


def test_every_column_is_in_the_tampering_test():
    assert set(TAMPERED) == set(entries.c.keys())


@pytest.mark.parametrize("column", TAMPERED)
def test_a_change_in_any_column_is_detected_and_its_entry_named(ledger, url, column):
    filled(ledger)
    where = (entries.c.run == "r") & (entries.c.sequence == 1)
    execute(url, entries.update().where(where).values({column: TAMPERED[column]}))
    with pytest.raises(LedgerBroken, match=r"entry 1\b"):
        ledger.verify("r")


def test_a_removed_entry_is_detected(ledger, url):
    filled(ledger)
    execute(url, entries.delete().where(entries.c.sequence == 2))
    with pytest.raises(LedgerBroken, match="entry 2 is missing"):
        ledger.verify("r")


def test_a_cut_tail_is_detected(ledger, url):
    filled(ledger)
    execute(url, entries.delete().where(entries.c.sequence == 3))
    with pytest.raises(LedgerBroken, match="entry 3 is the first to differ"):
        ledger.verify("r")


def test_changed_counters_are_detected(ledger, url):
    filled(ledger)
    execute(url, counters.delete())
    with pytest.raises(LedgerBroken, match="counters"):
        ledger.verify("r")


def test_a_raised_budget_is_detected(ledger, url):
    filled(ledger)
    execute(url, heads.update().values(budget_epsilon=1e9))
    with pytest.raises(LedgerBroken):
        ledger.verify("r")


def test_a_ledger_rewritten_as_a_whole_is_detected_by_a_head_kept_elsewhere(ledger, url):
    kept = filled(ledger).head("r")
    for table in (entries, heads, counters):
        execute(url, table.delete())
    opened(ledger)
    ledger.reserve("r", 0, 3, charge(0))
    ledger.verify("r")  # by itself the new chain is whole
    with pytest.raises(LedgerBroken, match="kept elsewhere"):
        ledger.verify("r", expected=kept)


def test_a_kept_head_stays_valid_as_the_chain_grows(ledger):
    kept = filled(ledger).head("r")
    ledger.reserve("r", 50, 1, charge(1))
    assert ledger.verify("r", expected=kept).length == kept.length + 1


def test_concurrent_threads_lose_no_entry_and_break_no_link(ledger, url):
    opened(ledger)

    def write(worker: int) -> None:
        mine = open_ledger(url)
        for step in range(5):
            mine.reserve("r", 100 * worker + step, 1, charge(1))
        mine.close()

    threads = [threading.Thread(target=write, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ledger.verify("r").length == 20
    assert ledger.spent("r") == 10.0


def test_concurrent_writers_cannot_overspend_a_budget_together(ledger, url):
    opened(ledger, epsilon=3.0)
    refused = []

    def write(worker: int) -> None:
        mine = open_ledger(url)
        for step in range(5):
            try:
                mine.reserve("r", 100 * worker + step, 1, charge(1))
            except BudgetExhausted:
                refused.append((worker, step))
        mine.close()

    threads = [threading.Thread(target=write, args=(worker,)) for worker in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ledger.spent("r") == 3.0
    assert len(refused) == 15 - 6


def test_concurrent_openings_of_one_run_agree(url):
    failures = []

    def open_it() -> None:
        try:
            mine = open_ledger(url)
            opened(mine)
            mine.close()
        except Exception as problem:
            failures.append(problem)

    threads = [threading.Thread(target=open_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def reserve_and_die(url: str) -> None:
    book = open_ledger(url)
    book.reserve("r", 0, 4, charge(1))
    os._exit(9)


def test_a_reservation_is_durable_when_its_process_dies_at_once(ledger, url):
    opened(ledger)
    child = multiprocessing.get_context("spawn").Process(target=reserve_and_die, args=(url,))
    child.start()
    child.join(timeout=60)
    assert child.exitcode == 9
    assert ledger.covers("r", 3)
    ledger.verify("r")


def test_an_engine_and_a_clock_may_be_passed_in(tmp_path):
    engine = sa.create_engine(f"sqlite:///{tmp_path}/shared.db")
    moment = datetime(2030, 1, 2, tzinfo=UTC)
    book = Ledger(engine, clock=lambda: moment)
    opened(book).reserve("r", 0, 1, charge())
    assert book.entries("r")[0].time == "2030-01-02T00:00:00+00:00"
    book.verify("r")
    engine.dispose()
