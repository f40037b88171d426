"""Powers of many points, spread over the processor's cores.

X25519 in `cryptography` holds the interpreter's lock, so threads gain nothing: large lists go to worker processes. They
are started afresh (never forked, since the services hold gRPC channels), import only the curve, and end with the
alignment, or with the service, however that ends.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ProcessPoolExecutor
from multiprocessing import get_context
from types import TracebackType
from typing import Self

from parley.privacy.psi_curve import POINT_BYTES, hashed_power, power

BATCH = 1024
"""Points of one piece of work: 4 to 30 ms."""
AHEAD = 4
"""Pieces that wait for each process."""
FEW = 4 * BATCH
"""Lists up to this length are not worth the start of a process."""
PARENT_SECONDS = 1.0
"""How often a worker looks whether its service is still there: one that was killed cannot tell it."""


class Workers:
    """Processes that raise points to powers, while they are in use."""

    def __init__(self, processes: int | None = None) -> None:
        self._processes = processes or len(os.sched_getaffinity(0))
        self._pool: ProcessPoolExecutor | None = None
        self._turn, self._closed = threading.Lock(), False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let the processes go; work that has not begun is dropped."""
        self._closed = True
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def power(self, points: bytes, scalar: bytes) -> bytes:
        """Every point to the power of one scalar."""
        size = BATCH * POINT_BYTES
        pieces = ((points[start : start + size], scalar) for start in range(0, len(points), size))
        return b"".join(self._spread(power, len(points) // POINT_BYTES, pieces))

    def hashed_power(self, ids: Sequence[str], context: bytes, scalar: bytes) -> bytes:
        """The points of ids to the power of one scalar."""
        pieces = ((ids[start : start + BATCH], context, scalar) for start in range(0, len(ids), BATCH))
        return b"".join(self._spread(hashed_power, len(ids), pieces))

    def _spread(
        self, function: Callable[..., bytes], count: int, arguments: Iterable[tuple[object, ...]]
    ) -> Iterator[bytes]:
        if count <= FEW or self._processes == 1:
            return (function(*one) for one in self._while_open(arguments))
        with self._turn:
            if self._pool is None:
                self._pool = ProcessPoolExecutor(
                    self._processes, mp_context=get_context("spawn"), initializer=end_with, initargs=(os.getpid(),)
                )
        return self._pooled(self._pool, function, self._while_open(arguments))

    def _while_open(self, arguments: Iterable[tuple[object, ...]]) -> Iterator[tuple[object, ...]]:
        for one in arguments:
            if self._closed:
                raise CancelledError
            yield one

    def _pooled(
        self, pool: ProcessPoolExecutor, function: Callable[..., bytes], arguments: Iterable[tuple[object, ...]]
    ) -> Iterator[bytes]:
        """Results in their order; a few pieces wait for each process, so that what lies in queues stays small."""
        under_way: deque[Future[bytes]] = deque()
        for one in arguments:
            under_way.append(pool.submit(function, *one))
            if len(under_way) > AHEAD * self._processes:
                yield under_way.popleft().result()
        while under_way:
            yield under_way.popleft().result()


def end_with(parent: int) -> None:
    """Worker: end when the process that started it has ended."""
    threading.Thread(target=_watch, args=(parent,), name="parent", daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_SECONDS)
    os._exit(1)
