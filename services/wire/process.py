"""A service as a process: arguments, logs, signals, and a file that says when it is ready."""

import argparse
import asyncio
import contextlib
import json
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import grpc
import uvloop

from parley.services.wire.state_directory import keep_files_private

GRACE_SECONDS = 3.0
END_SECONDS = 8.0
"""A service that has not ended by itself so long after a signal is ended: a container engine kills after 10 s."""
HEARTBEAT = "PARLEY_HEARTBEAT"
"""Environment variable: the file that a service touches while it serves, for probes that must be cheap."""
HEARTBEAT_SECONDS = 5.0
STANDING_BY = ".standby"
PARENT_SECONDS = 1.0
"""How often a service looks whether the process that started it is still there."""
logger = logging.getLogger(__name__)


class JsonLines(logging.Formatter):
    """One JSON object for each record: constant messages, ids and counts; never a tensor."""

    def format(self, record: logging.LogRecord) -> str:
        """A record as one line."""
        entry = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info and record.exc_info[0] is not None:
            # Where it went wrong, but not the error's own text, which may quote a value.
            entry["error"] = record.exc_info[0].__name__
            entry["trace"] = "".join(traceback.format_tb(record.exc_info[2]))
        return json.dumps(entry)


def arguments(description: str) -> argparse.Namespace:
    """The arguments that every service takes."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--config", type=Path, required=True, help="the service's YAML configuration")
    parser.add_argument("--ready-file", type=Path, help="written with the address once the service listens")
    parser.add_argument("--parent", type=int, metavar="PID", help="end when this process, which started it, has ended")
    return parser.parse_args()


def run(main: Callable[[argparse.Namespace], Awaitable[None]], description: str) -> None:
    """Run a service until it is told to stop; a configuration error ends it with one line and exit code 2."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    given = arguments(description)
    keep_files_private()
    try:
        uvloop.run(_until_stopped(main(given), given.parent))
    except (ValueError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        raise SystemExit(2) from None


async def _until_stopped(main: Awaitable[None], parent: int | None) -> None:
    task = asyncio.ensure_future(main)
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, _stop, task)
    watch = None if parent is None else asyncio.create_task(_cancel_without(parent, task))
    try:
        await task
    except asyncio.CancelledError:
        logger.info("stopped")
    finally:
        if watch is not None:
            watch.cancel()


def _stop(task: asyncio.Future[None]) -> None:
    """End in order, or, where something does not let go in time, end all the same: everything durable is written."""
    task.cancel()
    last = threading.Timer(END_SECONDS, _end)
    last.daemon = True
    last.start()


def _end() -> None:
    logger.warning("stopped; what had not ended within %g s is made again at the next start", END_SECONDS)
    logging.shutdown()
    os._exit(0)


async def _cancel_without(parent: int, task: asyncio.Future[None]) -> None:
    """A federation on one machine must not outlive the program that started it, however that ended."""
    while os.getppid() == parent:  # noqa: ASYNC110 (no event tells of another process)
        await asyncio.sleep(PARENT_SECONDS)
    task.cancel()


async def serve(server: grpc.aio.Server, address: str, ready_file: Path | None) -> None:
    """Serve until cancelled, then let calls in progress finish for a short while."""
    await server.start()
    logger.info("listening on %s", address)
    if ready_file is not None:
        scratch = ready_file.with_suffix(".partial")
        scratch.write_text(address)
        scratch.replace(ready_file)
    beating = asyncio.create_task(_beat(os.environ.get(HEARTBEAT)))
    try:
        await server.wait_for_termination()
    finally:
        beating.cancel()
        await server.stop(GRACE_SECONDS)


@contextlib.asynccontextmanager
async def standing_by() -> AsyncIterator[None]:
    """Show that this process is alive though it does not serve: probes look at another file for that."""
    path = os.environ.get(HEARTBEAT)
    beating = asyncio.create_task(_beat(f"{path}{STANDING_BY}" if path else None))
    try:
        yield
    finally:
        beating.cancel()


async def _beat(path: str | None) -> None:
    """Touch a file as long as this loop runs, so that a probe need not start an interpreter and dial."""
    while path:
        Path(path).touch()  # noqa: ASYNC240 (one inode in memory; a thread would say nothing of this loop)
        await asyncio.sleep(HEARTBEAT_SECONDS)
