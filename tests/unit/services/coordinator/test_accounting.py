"""The work of a run over its attempts, and figures until they are written."""

from parley.coordinator.programs import Report
from parley.services.coordinator.accounting import UnwrittenFigures, WorkTally
from parley.services.coordinator.streams import Traffic
from parley.spec.events import RunTotals


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


def test_the_work_of_every_attempt_is_added_up():
    clock = Clock()
    tally, first = WorkTally(RunTotals(10, 1000, 0, 5.0), clock), Traffic()
    tally.begin(first)
    first.rounds, first.sent_bytes, first.received_bytes = 3, 20, 30
    clock.now += 2.0
    assert tally.totals == RunTotals(13, 1050, 0, 7.0)
    tally.end()
    clock.now += 60.0  # nobody works while the run waits
    assert tally.totals == RunTotals(13, 1050, 0, 7.0)
    second = Traffic(rounds=1, sent_bytes=5)
    tally.begin(second)
    clock.now += 1.0
    assert tally.totals == RunTotals(14, 1055, 0, 8.0)


def test_bytes_of_a_round_that_failed_have_crossed_all_the_same():
    tally, traffic = WorkTally(RunTotals()), Traffic()
    tally.begin(traffic)
    traffic.rounds, traffic.sent_bytes = 1, 500  # and no answer came
    tally.end()
    assert tally.totals.bytes == 500


def test_a_release_that_is_replayed_after_a_resume_is_counted_once():
    tally = WorkTally(RunTotals())
    for number in (0, 1, 2, 3, 2, 3, 4):
        tally.release(number)
    assert (tally.totals.label_releases, tally.next_release) == (5, 5)
    resumed = WorkTally(tally.totals)
    assert resumed.next_release == 5
    for number in (3, 4, 5, 6):
        resumed.release(number)
    assert resumed.totals.label_releases == 7


def test_the_newest_value_of_each_metric_is_told_with_its_own_iteration():
    figures = UnwrittenFigures()
    figures.add(Report(1, {"upper loss": 1.0, "norm": 9.0}))
    figures.add(Report(2, {"upper loss": 0.5}))
    figures.add(Report(2, {"test accuracy": 0.75}))
    assert figures.reports() == [Report(1, {"norm": 9.0}), Report(2, {"upper loss": 0.5, "test accuracy": 0.75})]
    figures.written(figures.reports()[0])
    assert figures.reports() == [Report(2, {"upper loss": 0.5, "test accuracy": 0.75})]
    figures.add(Report(3, {"upper loss": 0.25}))
    assert figures.reports() == [Report(2, {"test accuracy": 0.75}), Report(3, {"upper loss": 0.25})]


def test_what_an_iteration_measures_later_is_told_with_what_was_written_before():
    figures = UnwrittenFigures()
    figures.add(Report(2, {"upper loss": 0.5}))
    figures.written(figures.reports()[0])
    assert not figures
    figures.add(Report(2, {"test accuracy": 0.75}))
    assert figures.reports() == [Report(2, {"upper loss": 0.5, "test accuracy": 0.75})]
    figures.written(figures.reports()[0])
    figures.add(Report(3, {"upper loss": 0.25}))
    assert figures.reports() == [Report(3, {"upper loss": 0.25})]
