"""Short work is done in the event loop, long work in a thread."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from parley.services.wire.adaptive_executor import SHORT_SECONDS, AdaptiveExecutor


class Clock:
    """Goes on only when it is told to."""

    seconds = 0.0

    def __call__(self):
        return self.seconds


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def work(clock):
    with ThreadPoolExecutor(max_workers=1) as worker:
        yield AdaptiveExecutor(worker, clock)


async def test_work_moves_into_the_event_loop_once_it_was_short_and_out_once_it_was_long(work, clock):
    here = threading.current_thread()

    def where(seconds=0.0):
        clock.seconds += seconds
        return threading.current_thread()

    assert await work.do("kind", where) is not here, "nothing is known of its length yet"
    assert await work.do("kind", where) is here
    assert await work.do("another kind", where) is not here
    assert await work.do("kind", where, 2 * SHORT_SECONDS) is here, "it was short the last time"
    assert await work.do("kind", where) is not here


async def test_an_error_comes_through_from_either_place(work):
    def fail():
        raise ValueError("no")

    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            await work.do("kind", fail)
