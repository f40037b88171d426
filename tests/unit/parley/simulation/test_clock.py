"""A simulated clock: sleeps take no time, and keep their order."""

import asyncio

import pytest

from parley.simulation.clock import on_simulated_clock


def test_sleepers_wake_in_the_order_of_their_times_and_the_clock_says_when():
    woken = []

    async def sleeper(seconds):
        await asyncio.sleep(seconds)
        woken.append((seconds, asyncio.get_running_loop().time()))

    async def everybody():
        await asyncio.gather(sleeper(3600.0), sleeper(60.0), sleeper(0.5))

    on_simulated_clock(everybody())
    assert [seconds for seconds, _ in woken] == [0.5, 60.0, 3600.0]
    assert [at for _, at in woken] == pytest.approx([0.5, 60.0, 3600.0])


def test_work_for_a_thread_is_done_at_once_and_its_error_arrives():
    async def work(function):
        return await asyncio.get_running_loop().run_in_executor(None, function)

    assert on_simulated_clock(work(lambda: 7)) == 7
    with pytest.raises(ZeroDivisionError):
        on_simulated_clock(work(lambda: 1 // 0))


def test_a_deadline_passes_in_simulated_time():
    async def wait():
        await asyncio.wait_for(asyncio.Event().wait(), timeout=1000.0)

    with pytest.raises(TimeoutError):
        on_simulated_clock(wait())


def test_a_run_in_which_everybody_waits_for_ever_is_told_from_one_that_sleeps():
    async def wait():
        await asyncio.Event().wait()

    with pytest.raises(RuntimeError, match="come to a halt"):
        on_simulated_clock(wait())
