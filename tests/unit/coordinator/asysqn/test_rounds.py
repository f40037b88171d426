"""When the coordinator asks parties that work by themselves; their own clocks are the only ones."""

import numpy as np
import pytest

from parley.coordinator.asysqn import rounds as asysqn
from parley.coordinator.asysqn.watch import Watch
from parley.numerics.gradient_estimators import Estimator
from parley.numerics.linear_losses import Logistic
from parley.protocols.asysqn.messages import Evaluate, Halt, Progress, Report, Start
from parley.protocols.rounds import Checkpoint, Finish

PARTIES = ("north", "east", "south")


def problem(**changes):
    settings = {
        "loss": Logistic(),
        "estimator": Estimator.SVRG,
        "regularisation": 0.0,
        "snapshot_every": 8,
        "synchronous": False,
        "steps": 1000,
        "parties": PARTIES,
        "watched": np.arange(2),
        "trained": 2,
        "labels": np.array([1.0, -1.0]),
        "labelled_loss": None,
        "stops": False,
        "evaluate_every": 100,
        "checkpoint_every": 250,
        "watch": Watch(),
    }
    return asysqn.Problem(**settings | changes)


class Loops:
    """Parties that make `rate` calls per second together, on a clock of their own."""

    def __init__(self, rate, evaluation_seconds=0.0):
        self._rate, self._evaluation_seconds = rate, evaluation_seconds
        self.seconds, self.running, self.pauses, self.asked = 0.0, False, [], []

    def drive(self, run):
        reports = []
        rounds = asysqn.rounds(run, 0, reports.append)
        total = None
        while True:
            try:
                current = rounds.send(total)
            except StopIteration:
                return reports
            self.pauses.append(current.pause_seconds)
            self.seconds += current.pause_seconds if self.running else 0.0
            total = self._answer(run, current.ask)

    def _answer(self, run, ask):
        self.running = self.running or isinstance(ask, Start)
        self.seconds += self._evaluation_seconds if isinstance(ask, Evaluate) else 0.0
        self.running = self.running and not isinstance(ask, Halt)
        calls = int(self._rate * self.seconds) // len(PARTIES)
        for party in range(len(PARTIES)):
            run.progress[party] = Progress(party, updates=calls, calls=calls, loop_seconds=self.seconds)
        self.asked.append((type(ask), run.rounds))
        return np.array([1.0, -1.0, 0.0]) if isinstance(ask, Evaluate) else None


@pytest.mark.parametrize("rate", [30.0, 1000.0])
def test_parties_are_asked_when_their_own_pace_says_that_a_mark_is_due(rate):
    loops = Loops(rate)
    reports = loops.drive(problem())
    marks = [report.k for report in reports]
    assert [mark // 100 for mark in marks] == [*range(1, len(marks)), 10]
    assert all(mark % 100 <= max(3, 0.02 * rate) for mark in marks), "soon after each mark"
    checkpoints = [rounds for ask, rounds in loops.asked if ask is Checkpoint]
    assert [rounds // 250 for rounds in checkpoints] == [1, 2, 3, 4, 4], "and one when the loops have been halted"
    assert loops.asked[0][0] is Report
    assert [ask for ask, _ in loops.asked[-4:]] == [Halt, Evaluate, Checkpoint, Finish]


def test_nobody_is_asked_more_than_a_hundred_times_or_less_than_twice_a_second():
    loops = Loops(rate=1.0)
    loops.drive(problem(steps=20, evaluate_every=0, checkpoint_every=0))
    between = [pause for pause in loops.pauses if pause]
    assert between
    assert all(0.01 <= pause <= 0.5 for pause in between)


def test_evaluations_that_take_long_stay_a_small_share_of_the_run():
    loops = Loops(rate=1000.0, evaluation_seconds=0.2)
    reports = loops.drive(problem(steps=20_000))
    assert len(reports) * 0.2 <= 1.1 * asysqn.EVALUATION_SHARE * loops.seconds


def test_a_party_whose_clock_says_nonsense_delays_nobody_for_long():
    run = problem(steps=10, evaluate_every=5, checkpoint_every=0)
    rounds = asysqn.rounds(run, 0, lambda report: None)
    total, pauses = None, []
    for number in range(200):
        current = rounds.send(total)
        pauses.append(current.pause_seconds)
        total = np.array([1.0, -1.0, 0.0]) if isinstance(current.ask, Evaluate) else None
        run.progress[0] = Progress(0, calls=min(number // 20, 9), loop_seconds=10.0 ** (number % 12))
    assert max(pauses) <= 1.5
    assert min(pauses) >= 0.0
