"""Who is next, and who must wait."""

import pytest

from parley.services.coordinator.queue import Limits, RunQueue, TooManyRuns, Waiting


def queue(*waiting, **limits):
    made = RunQueue(Limits(**{"runs": 2, "queued": 3} | limits))
    for run_id, owner, priority in waiting:
        made.add(Waiting(run_id, owner, priority))
    return made


def order(made):
    found = []
    while (chosen := made.pop([])) is not None:
        found.append(chosen.run_id)
    return found


def test_the_highest_priority_goes_first_and_then_who_came_first():
    made = queue(("a", "ann", 0), ("b", "ann", 5), ("c", "bob", 0), ("d", "bob", 5))
    assert made.place(0) == 5
    assert made.place(5) == 3
    assert order(made) == ["b", "d", "a", "c"]


def test_nobody_goes_while_there_is_no_room():
    made = queue(("a", "ann", 0))
    assert made.pop(["bob", "bob"]) is None
    assert made.pop(["bob"]) == Waiting("a", "ann", 0)


def test_an_owner_at_its_limit_is_passed_over_and_keeps_its_place():
    made = queue(("a", "ann", 9), ("b", "bob", 0), runs=3, runs_of_one=1)
    assert not made.has_room("ann", ["ann"])
    assert made.pop(["ann"]) == Waiting("b", "bob", 0)
    assert made.pop(["bob"]) == Waiting("a", "ann", 9)


def test_too_many_that_wait_are_refused_in_all_and_of_one_client():
    made = queue(("a", "ann", 0), ("b", "ann", 0), queued_of_one=2)
    made.require_place("bob")
    with pytest.raises(TooManyRuns, match="queue_per_client"):
        made.require_place("ann")
    made.add(Waiting("c", "bob", 0))
    with pytest.raises(TooManyRuns, match="`queue`"):
        made.require_place("bob")


def test_what_is_taken_out_does_not_wait():
    made = queue(("a", "ann", 0), ("b", "bob", 0))
    assert made.remove("a")
    assert not made.remove("a")
    assert (made.has("ann"), made.has("bob"), len(made)) == (False, True, 1)
