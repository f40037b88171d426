"""The registry as the event loop uses it."""

from collections.abc import Sequence
from typing import Any

from parley.services.coordinator.database_threads import READ_SECONDS, DatabaseThreads
from parley.services.coordinator.registry import ALL, LONGEST_ID, Filter, Registry, RunUnknown, now
from parley.services.coordinator.registry_tables import EventRecord, RunRecord
from parley.spec.events import Body


class AsyncRegistry:
    """Every call of the registry in a thread. Waits for a database that is away as long as the caller says."""

    def __init__(self, registry: Registry, threads: DatabaseThreads) -> None:
        self._registry, self._threads = registry, threads

    async def create(self, record: RunRecord) -> RunRecord:
        """Register a run; not tried twice, because the caller may give up meanwhile."""
        return await self._threads.write_within(0.0, self._registry.create, record)

    async def get(self, run_id: str, seconds: float = READ_SECONDS) -> RunRecord:
        """One run; an id that is longer than any run's does not reach the database."""
        if len(run_id) > LONGEST_ID:
            raise RunUnknown.named(run_id)
        return await self._threads.read_within(seconds, self._registry.get, run_id)

    async def by_request(self, request_id: str) -> RunRecord | None:
        """The run that a request started, if it started one."""
        return await self._threads.read(self._registry.by_request, request_id)

    async def page(self, limit: int, before: int | None = None, only: Filter = ALL) -> list[tuple[int, RunRecord]]:
        """Runs without their specs, newest first, each with its number."""
        return await self._threads.read(self._registry.page, limit, before, only)

    async def states(self) -> dict[str, int]:
        """How many runs are in each state."""
        return await self._threads.read(self._registry.states)

    async def unfinished(self) -> list[RunRecord]:
        """Runs that were active when the coordinator stopped."""
        return await self._threads.read(self._registry.unfinished)

    async def queued(self) -> list[RunRecord]:
        """Runs that wait for their turn, without their specs, the next one first."""
        return await self._threads.read(self._registry.queued)

    async def waiting(self, party: str) -> list[str]:
        """Runs that are paused and that a party takes part in."""
        return await self._threads.read(self._registry.waiting, party)

    async def change(
        self, run_id: str, body: Body, message: str, *, seconds: float = READ_SECONDS, **changes: Any
    ) -> EventRecord:
        """Change a run and note the event, once, however often the database has to be asked."""
        write, time = self._registry.change, now()
        return await self._threads.write_within(seconds, write, run_id, body, message, time=time, **changes)

    async def tag(self, run_id: str, add: Sequence[str], remove: Sequence[str]) -> RunRecord:
        """Put tags on a run and take others off."""
        return await self._threads.write_within(0.0, self._registry.tag, run_id, add, remove)

    async def delete(self, run_ids: Sequence[str]) -> list[str]:
        """Forget ended runs; returns which it were."""
        return await self._threads.write_within(0.0, self._registry.delete, run_ids)

    async def ended_before(self, time: str, limit: int, states: Sequence[str] = ()) -> list[str]:
        """Runs that ended before a time, oldest first."""
        return await self._threads.read(self._registry.ended_before, time, limit, states)

    async def kept(self, run_id: str, checkpoint: int, seconds: float = READ_SECONDS) -> bytes:
        """The coordinator's own state of a committed checkpoint."""
        return await self._threads.read_within(seconds, self._registry.kept, run_id, checkpoint)

    async def events(self, run_id: str, after: int, seconds: float = READ_SECONDS) -> list[EventRecord]:
        """Events of a run after a sequence number, oldest first."""
        return await self._threads.read_within(seconds, self._registry.events, run_id, after)
