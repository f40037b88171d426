"""Parts of sums that come early, late, twice, or in floods."""

import asyncio

import pytest

from parley.party.mailbox import Mailbox
from parley.party.peers import PeerFlooded

ANN, BOB = 0, 1


async def waiting(mailbox, *address):
    """A task that waits for a part, and really waits already."""
    task = asyncio.create_task(mailbox.get(*address))
    await asyncio.sleep(0)
    assert not task.done()
    return task


async def test_a_part_that_comes_before_anybody_waits_is_there_when_somebody_does():
    mailbox = Mailbox(most_sums=4)
    mailbox.put(ANN, 1, "values", "part")
    assert await mailbox.get(ANN, 1, "values") == "part"


async def test_whoever_waits_gets_the_part_of_that_sender_that_sum_and_that_kind():
    mailbox = Mailbox(most_sums=4)
    task = await waiting(mailbox, ANN, 2, "values")
    for sender, number, kind in [(BOB, 2, "values"), (ANN, 3, "values"), (ANN, 2, "masks")]:
        mailbox.put(sender, number, kind, "another")
    await asyncio.sleep(0)
    assert not task.done()
    mailbox.put(ANN, 2, "values", "part")
    assert await task == "part"


async def test_a_repeated_part_changes_nothing():
    mailbox = Mailbox(most_sums=4)
    mailbox.put(ANN, 1, "values", "first")
    mailbox.put(ANN, 1, "values", "second")
    assert await mailbox.get(ANN, 1, "values") == "first"


async def test_a_part_of_a_sum_that_is_over_is_dropped_and_takes_no_room():
    mailbox = Mailbox(most_sums=1)
    mailbox.close(7)
    for number in range(8):
        mailbox.put(ANN, number, "values", "late")
    mailbox.put(ANN, 8, "values", "part")
    assert await mailbox.get(ANN, 8, "values") == "part"
    assert (await waiting(mailbox, ANN, 7, "values")).cancel()


async def test_closing_a_sum_makes_room_for_that_many_more():
    mailbox = Mailbox(most_sums=2)
    mailbox.put(ANN, 1, "values", "one")
    mailbox.put(ANN, 2, "values", "two")
    with pytest.raises(PeerFlooded):
        mailbox.put(ANN, 3, "values", "three")
    mailbox.close(1)
    mailbox.put(ANN, 3, "values", "three")
    assert [await mailbox.get(ANN, number, "values") for number in (2, 3)] == ["two", "three"]


async def test_whoever_waits_for_a_part_of_a_sum_that_was_given_up_stops_waiting():
    mailbox = Mailbox(most_sums=2)
    given_up, wanted = await waiting(mailbox, ANN, 1, "values"), await waiting(mailbox, ANN, 2, "values")
    mailbox.close(1)
    with pytest.raises(asyncio.CancelledError):
        await given_up
    mailbox.put(ANN, 2, "values", "part")
    assert await wanted == "part"


async def test_a_late_end_of_an_older_sum_does_not_open_a_newer_one_again():
    mailbox = Mailbox(most_sums=2)
    mailbox.close(5)
    mailbox.close(3)
    mailbox.put(ANN, 5, "values", "late")
    assert (await waiting(mailbox, ANN, 5, "values")).cancel()


async def test_a_sender_that_floods_is_refused_and_the_others_are_not():
    mailbox = Mailbox(most_sums=3)
    for number in (10**9, 10**9 + 1, 10**9 + 2):
        mailbox.put(ANN, number, "values", "flood")
    with pytest.raises(PeerFlooded, match="3 sums"):
        mailbox.put(ANN, 10**9 + 3, "values", "flood")
    mailbox.put(ANN, 10**9, "masks", "of a sum that is here")
    mailbox.put(BOB, 1, "values", "part")
    assert await mailbox.get(BOB, 1, "values") == "part"


async def test_a_part_that_somebody_waits_for_arrives_even_from_a_sender_that_floods():
    mailbox = Mailbox(most_sums=2)
    task = await waiting(mailbox, ANN, 1, "values")
    mailbox.put(ANN, 10**9, "values", "flood")
    with pytest.raises(PeerFlooded):
        mailbox.put(ANN, 10**9 + 1, "values", "flood")
    mailbox.put(ANN, 1, "values", "part")
    assert await task == "part"
