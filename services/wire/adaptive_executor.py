"""Where work is done: short work in the event loop, long work in a compute thread."""

import asyncio
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Executor
from typing import ParamSpec, TypeVar

SHORT_SECONDS = 2e-3
"""Work that took less than this may hold the event loop up; a trip to a thread and back costs a tenth of it."""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class AdaptiveExecutor:
    """Does work of a kind in the event loop if it was short the last time, else in a compute thread."""

    def __init__(self, worker: Executor, clock: Callable[[], float] = time.perf_counter) -> None:
        self._worker, self._clock = worker, clock
        self._short: set[Hashable] = set()

    async def do(
        self,
        kind: Hashable | None,
        function: Callable[Arguments, Result],
        *arguments: Arguments.args,
        **named: Arguments.kwargs,
    ) -> Result:
        """The function's result; work of one kind takes about the same time whenever it comes, None takes any."""
        if kind in self._short:
            return self._timed(kind, function, *arguments, **named)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._worker, lambda: self._timed(kind, function, *arguments, **named))

    def _timed(
        self,
        kind: Hashable | None,
        function: Callable[Arguments, Result],
        *arguments: Arguments.args,
        **named: Arguments.kwargs,
    ) -> Result:
        started = self._clock()
        try:
            return function(*arguments, **named)
        finally:
            short = kind is not None and self._clock() - started < SHORT_SECONDS
            (self._short.add if short else self._short.discard)(kind)
