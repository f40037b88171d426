"""What a run has spent on labels, by the terms of its spec."""

from parley.contracts.ledger.v1 import ledger_pb2 as pb
from parley.privacy.ledger import Ledger
from parley.services.coordinator.database_threads import DatabaseThreads
from parley.services.coordinator.registry_tables import RunRecord
from parley.services.wire import ledger_codec
from parley.services.wire.ledger_codec import entries_of as entries_of
from parley.spec.parsing import parse_spec

REPORT_SECONDS = 60.0
"""Composing many releases takes longer than reading them."""


def report_of(ledger: Ledger, record: RunRecord) -> pb.PrivacyReport:
    """What a run has spent on the record that was released most often."""
    settings = parse_spec(record.spec_yaml).privacy.labels
    return ledger_codec.report_of(ledger, record.run_id, delta=settings.delta, budget=settings.budget or 0.0)


class LedgerReports:
    """The label ledger as clients see it, read off the event loop."""

    def __init__(self, ledger: Ledger, threads: DatabaseThreads) -> None:
        self._ledger, self._threads = ledger, threads

    async def of(self, record: RunRecord) -> tuple[list[pb.LedgerEntry], pb.PrivacyReport, str]:
        """A run's entries, what they cost, and the first broken link of their chain (empty if it is whole)."""
        return await self._threads.read_within(REPORT_SECONDS, self._read, record)

    def _read(self, record: RunRecord) -> tuple[list[pb.LedgerEntry], pb.PrivacyReport, str]:
        entries, broken = entries_of(self._ledger, record.run_id)
        return entries, pb.PrivacyReport() if broken else report_of(self._ledger, record), broken
