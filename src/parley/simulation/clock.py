"""An event loop on a simulated clock: whoever sleeps is woken at once, in the order of the simulated times.

Work takes no simulated time, wherever it would be done: it runs in this thread when it is asked for. So a run in which
parties sleep for minutes takes as long as its arithmetic, and always ends with the same bits.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar

Result = TypeVar("Result")


class _Jump(selectors.DefaultSelector):
    """Waits for nothing: a wait only moves the clock."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise RuntimeError("everybody waits and nobody will wake anybody: the simulated run has come to a halt")
        self.now += max(timeout, 0.0)
        return super().select(0)


class SimulatedClock(asyncio.SelectorEventLoop):
    """The loop. Nothing outside of it may wake it: no sockets, no threads."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)

    def time(self) -> float:
        """Simulated seconds since the loop was made."""
        return self._jump.now

    def run_in_executor(  # type: ignore[override]  # the base class says coroutine, and returns a future
        self,
        executor: Executor | None,  # noqa: ARG002 (no thread is wanted)
        func: Callable[..., Result],
        *args: Any,
    ) -> asyncio.Future[Result]:
        """Do the work here and now."""
        done: asyncio.Future[Result] = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done


def on_simulated_clock(steps: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end on a clock of its own, which starts at 0."""
    with asyncio.Runner(loop_factory=SimulatedClock) as runner:
        return runner.run(steps)
