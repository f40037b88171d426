"""One process at a time: a lock on a directory, and on the database that a service keeps its state in.

A lock on a file lives as long as its process: the system takes it back however that ends. A lock of PostgreSQL lives as
long as its connection, which a restart of the server ends while the process goes on. So whoever takes a database over
also writes a token of its own into it, which every write compares (`Registry.claim`), and `keep` takes the lock again.
"""

import asyncio
import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import sqlalchemy as sa

from parley.storage.engines import open_engine
from parley.storage.failures import StorageAway, named_failures

_KEY = 0x7061726C6579 + 1
"""Any fixed number: the advisory lock of PostgreSQL that a coordinator holds while it serves."""
_TAKE_SECONDS = 5.0
"""How long a lock is tried: the server may not have noticed yet that the one before has ended."""
_STAND_BY_SECONDS = 0.5
"""How often one that stands by looks whether the other has ended."""
_KEEP_SECONDS = 2.0
_SERVER_NOTICES = "-c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3"
"""So that the server lets a lock go half a minute after its holder's machine has vanished, not two hours."""


class HeldElsewhere(OSError):
    """Another process serves what this one was to serve."""


class Lease(Protocol):
    """What a service holds while it serves a database."""

    async def keep(self, is_ours: Callable[[], bool]) -> None:
        """Hold it until cancelled; raises HeldElsewhere once `is_ours` says that another has taken over."""


class FileLease:
    """A file that one process holds at a time. Its children do not hold it."""

    def __init__(self, path: Path, what: str) -> None:
        """Take it.

        Raises:
            HeldElsewhere: if another process has it; says which.
        """
        self._file = path.open("a+")  # kept open: closing it would let the lock go
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.seek(0)
            holder = self._file.read().strip() or "unknown"
            self._file.close()
            raise HeldElsewhere(
                f"{what} is in use by another service (process {holder}): stop that one first, or give this one its own"
            ) from None
        self._file.truncate(0)
        self._file.write(f"{os.getpid()} on {socket.gethostname()}\n")
        self._file.flush()

    async def keep(self, is_ours: Callable[[], bool]) -> None:  # noqa: ARG002 (nobody can take it over)
        """Hold it until cancelled."""
        await asyncio.Event().wait()


class ServerLease:
    """An advisory lock of PostgreSQL, on a connection of its own."""

    def __init__(self, url: str, name: str, seconds: float = _TAKE_SECONDS) -> None:
        """Take it, trying for so long; `name` says who holds it, for the others.

        Raises:
            HeldElsewhere: if another process has it; says which.
            StorageAway: if the server does not answer.
        """
        who = f"{name}, process {os.getpid()} on {socket.gethostname()}"[:63]  # PostgreSQL keeps no more
        self._engine = open_engine(url, application_name=who, options=_SERVER_NOTICES)
        self._connection: sa.Connection | None = None
        deadline = time.monotonic() + seconds
        try:
            with named_failures("the coordinator", self._engine):
                while not self._locks():
                    if time.monotonic() > deadline:
                        raise HeldElsewhere(
                            f"the database {self._engine.url.render_as_string(hide_password=True)} is in use by "
                            f"another coordinator ({self._holder()}): stop that one first, or give this one its own"
                        )
                    time.sleep(0.2)
        except BaseException:
            self._engine.dispose()
            raise

    async def keep(self, is_ours: Callable[[], bool]) -> None:
        """Hold it through restarts of the server until cancelled."""
        while True:
            await asyncio.sleep(_KEEP_SECONDS)
            if not await asyncio.to_thread(self._holds, is_ours):
                raise HeldElsewhere("another coordinator has taken the database over: this one stops")

    def _holds(self, is_ours: Callable[[], bool]) -> bool:
        try:
            if self._connection is not None:
                self._connection.execute(sa.select(1))
                return True
            # The lock may still be held for our own connection that broke: what counts is whose the database is.
            self._locks()
            return is_ours()
        except (sa.exc.SQLAlchemyError, OSError):  # away: looked at again, and no write passes meanwhile
            self._drop()
            return True

    def _locks(self) -> bool:
        connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        if connection.scalar(sa.select(sa.func.pg_try_advisory_lock(_KEY))):
            self._connection = connection
            return True
        connection.close()
        return False

    def _drop(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sa.exc.SQLAlchemyError):  # it is broken: there is nothing to give back
                self._connection.invalidate()
                self._connection.close()
            self._connection = None

    def _holder(self) -> str:
        query = sa.text(
            "SELECT application_name FROM pg_stat_activity JOIN pg_locks USING (pid) "
            "WHERE locktype = 'advisory' AND granted AND (classid::bigint << 32 | objid::bigint) = :key"
        )
        with self._engine.connect() as connection:
            found: Any = connection.scalar(query, {"key": _KEY})
        return str(found or "unknown")


async def await_lease(url: str, name: str, waiting: Callable[[str], None]) -> Lease:
    """The lease of a database of PostgreSQL, once whoever has it ends; `waiting` is told once why it takes time."""
    told = False
    while True:
        try:
            return await asyncio.to_thread(ServerLease, url, name, 0.0)
        except (HeldElsewhere, StorageAway) as problem:
            if not told:
                waiting(str(problem))
            told = True
        await asyncio.sleep(_STAND_BY_SECONDS)


def take_lease(url: str, name: str) -> Lease:
    """The lease of a service's database."""
    parsed = sa.make_url(url)
    if parsed.get_backend_name() == "postgresql":
        return ServerLease(url, name)
    if parsed.get_backend_name() != "sqlite" or not parsed.database:
        raise ValueError(f"database: give the URL of a SQLite file or of PostgreSQL, not {parsed.get_backend_name()}")
    return FileLease(Path(f"{parsed.database}.lock"), f"the database {parsed.database}")
