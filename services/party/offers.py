"""What a party reports of its tables, gathered in the background so that a caller is answered at once."""

import asyncio
import logging
import threading
from collections.abc import Collection
from concurrent.futures import Future
from dataclasses import dataclass, field

from parley.services.party.tables import TableOffer, TableStore

WAIT_SECONDS = 1.0
"""How long an answer waits for tables that are being read: small ones are ready by then."""

logger = logging.getLogger(__name__)


@dataclass
class _Reading:
    """A table that is being read, or has been."""

    stamp: int
    """Of the file or query when it was begun."""
    share: float = 0.0
    """How much of it has been read."""
    offer: Future[TableOffer] = field(default_factory=Future)

    def report(self, share: float) -> None:
        self.share = share


class Offers:
    """The tables of a party, each read through once, and again when it changes."""

    def __init__(self, tables: TableStore) -> None:
        self._tables = tables
        self._readings: dict[str, _Reading] = {}
        self._turn = threading.Lock()  # one at a time: reading is bound by the disk

    async def of(self, names: Collection[str]) -> list[tuple[TableOffer, float]]:
        """What can be said of each table now, and which share of it has been read."""
        readings = {name: self._reading(name) for name in names}
        pending = [asyncio.wrap_future(each.offer) for each in readings.values() if not each.offer.done()]
        if pending:
            await asyncio.wait(pending, timeout=WAIT_SECONDS)
        return [
            (each.offer.result(), 1.0) if each.offer.done() else (TableOffer(name), each.share)
            for name, each in readings.items()
        ]

    def _reading(self, name: str) -> _Reading:
        stamp, known = self._tables.stamp(name), self._readings.get(name)
        if known is None or known.stamp != stamp:
            known = self._readings[name] = _Reading(stamp)
            # A daemon thread, so that a party can stop while a table is being read.
            threading.Thread(target=self._read, args=(name, known), name=f"survey {name}", daemon=True).start()
        return known

    def _read(self, name: str, reading: _Reading) -> None:
        with self._turn:
            try:
                reading.offer.set_result(self._tables.offer(name, reading.report))
            except Exception:
                logger.exception("table %s could not be looked through", name)
                reading.offer.set_result(TableOffer(name, problem="cannot be loaded; the party's log says why"))
