"""Calls to a database off the event loop: a slow, absent or frozen database holds up its callers and nobody else."""

import asyncio
import functools
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from parley.storage.failures import StorageAway

READ_SECONDS = 10.0
"""How long a question of a client waits for the database before it is refused."""
FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.1, 2.0
READERS, WRITERS = 4, 8
"""Threads; together fewer than the connections of an engine's pool."""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class DatabaseThreads:
    """Threads of their own for reading and for writing: a frozen database takes no thread from anything else."""

    def __init__(self) -> None:
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="database-read")
        self._writers = ThreadPoolExecutor(WRITERS, thread_name_prefix="database-write")

    async def read(
        self, function: Callable[Arguments, Result], *arguments: Arguments.args, **named: Arguments.kwargs
    ) -> Result:
        """A result that a client waits for.

        Raises:
            StorageAway: if the database has not answered within a few seconds.
        """
        return await self.read_within(READ_SECONDS, function, *arguments, **named)

    async def read_within(
        self,
        seconds: float,
        function: Callable[Arguments, Result],
        *arguments: Arguments.args,
        **named: Arguments.kwargs,
    ) -> Result:
        """A result that may take as long as this; a database that is away is asked again."""
        asking = functools.partial(function, *arguments, **named)
        loop, deadline, delay = asyncio.get_running_loop(), time.monotonic() + seconds, FIRST_WAIT_SECONDS
        while True:
            try:
                left = max(0.0, deadline - time.monotonic())
                return await asyncio.wait_for(loop.run_in_executor(self._readers, asking), left)
            except TimeoutError:
                raise StorageAway(f"the coordinator's database has not answered within {seconds:g} s") from None
            except StorageAway:
                if time.monotonic() + delay > deadline:
                    raise
            await asyncio.sleep(delay)
            delay = min(2 * delay, LONGEST_WAIT_SECONDS)

    async def write_within(
        self,
        seconds: float,
        function: Callable[Arguments, Result],
        *arguments: Arguments.args,
        **named: Arguments.kwargs,
    ) -> Result:
        """Write, and try again for so long while the database is away; a try that has begun is never abandoned.

        The function must do nothing the second time if the first has been committed.
        """
        writing_once = functools.partial(function, *arguments, **named)
        loop, deadline, delay = asyncio.get_running_loop(), time.monotonic() + seconds, FIRST_WAIT_SECONDS
        while True:
            writing = loop.run_in_executor(self._writers, writing_once)
            try:
                return await asyncio.shield(writing)
            except StorageAway:
                if time.monotonic() + delay > deadline:
                    raise
            finally:
                # A run that is cancelled finishes its write: a RUNNING after the CANCELLED would never be corrected.
                await asyncio.wait([writing])
            await asyncio.sleep(delay)
            delay = min(2 * delay, LONGEST_WAIT_SECONDS)

    def close(self) -> None:
        """Let the threads end."""
        self._readers.shutdown(wait=False, cancel_futures=True)
        self._writers.shutdown(wait=False, cancel_futures=True)
