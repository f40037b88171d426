"""Starts runs by the clock. A moment starts one run at most, however often the coordinator is started around it."""

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

from parley.services.coordinator.config import ScheduleConfig
from parley.services.coordinator.refusals import CATALOGUE
from parley.services.coordinator.rhythms import parse_every
from parley.services.coordinator.runs import RunActive, RunSupervisor
from parley.services.wire.audit import ADMITTED, AuditTrail
from parley.services.wire.configuration import ConfigInvalid
from parley.services.wire.refusals import find
from parley.spec.parsing import SpecInvalid, parse_spec
from parley.storage.failures import StorageFailed

LATE = timedelta(hours=1)
"""A moment that passed while no coordinator was there is made up for within this time."""
LOOK_SECONDS = 30.0
"""How often the clock is looked at, at least: it may be set."""
ROLE = "schedule"
logger = logging.getLogger(__name__)


class Schedules:
    """The runs that a configuration starts by the clock."""

    def __init__(self, schedules: Mapping[str, ScheduleConfig], runs: RunSupervisor, trail: AuditTrail) -> None:
        """Raises ConfigInvalid if a spec cannot be read or has mistakes."""
        self._schedules, self._runs, self._trail = schedules, runs, trail
        self._done: dict[str, datetime] = {}
        for name, schedule in schedules.items():
            try:
                parse_spec(_read(schedule.spec))
            except (OSError, UnicodeDecodeError, SpecInvalid) as error:
                raise ConfigInvalid(f"schedules.{name}: {schedule.spec}: {error}") from None

    async def keep(self) -> None:
        """Start what is due, until cancelled."""
        while self._schedules:
            now = datetime.now(UTC)
            for name, schedule in self._schedules.items():
                due = parse_every(schedule.every).last_before(now)
                if now - due <= LATE and self._done.get(name) != due:
                    self._done[name] = due
                    await self._start(name, schedule, due)
            later = min(parse_every(each.every).next_after(now) for each in self._schedules.values())
            wait = (later - datetime.now(UTC)).total_seconds()
            await asyncio.sleep(min(max(wait, 0.0), LOOK_SECONDS))

    async def _start(self, name: str, schedule: ScheduleConfig, due: datetime) -> None:
        owner, moment = f"{ROLE} {name}", f"{due:%Y-%m-%dT%H:%M}"
        try:
            if self._runs.drives(owner):
                raise RunActive("the run before has not ended")
            self._trail.note(ROLE, name, "", "start", f"due {moment}Z", ADMITTED)
            text = await asyncio.to_thread(_read, schedule.spec)
            await self._runs.start(f"{ROLE}-{name[:60]}-{moment}", text, owner, schedule.priority)
        except Exception as error:
            refusal = find(CATALOGUE, error)
            if refusal is None and not isinstance(error, (OSError, UnicodeDecodeError)):
                logger.exception("schedule %s starts no run", name)
            else:
                logger.error("schedule %s starts no run: %s", name, getattr(error, "without_values", error))
            with contextlib.suppress(StorageFailed):  # the log has it
                reason = "INTERNAL" if refusal is None else refusal.reason
                self._trail.note(ROLE, name, "", "start", f"due {moment}Z", reason)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")
