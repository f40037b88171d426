"""What a run has spent on labels, by the terms of its spec."""

from parley.contracts.ledger.v1 import ledger_pb2 as pb
from parley.privacy.evaluations import EvaluationRegister
from parley.privacy.ledger import Ledger
from parley.services.coordinator.async_registry import AsyncRegistry
from parley.services.coordinator.database_threads import DatabaseThreads
from parley.services.coordinator.registry import RunUnknown
from parley.services.wire import ledger_codec
from parley.services.wire.ledger_codec import entries_of as entries_of
from parley.services.wire.ledger_codec import evaluations_of
from parley.spec.parsing import parse_spec

REPORT_SECONDS = 60.0
"""Composing many releases takes longer than reading them."""

Report = tuple[list[pb.LedgerEntry], pb.PrivacyReport, str, list[pb.EvaluationCount]]


def report_of(ledger: Ledger, run_id: str, spec_yaml: str | None) -> pb.PrivacyReport:
    """What a run has spent on the record that was released most often; by the ledger's own terms without a spec."""
    if spec_yaml is not None:
        settings = parse_spec(spec_yaml).privacy.labels
        return ledger_codec.report_of(ledger, run_id, delta=settings.delta, budget=settings.budget or 0.0)
    newest = ledger.newest(run_id)
    if newest is None:
        return pb.PrivacyReport()
    return ledger_codec.report_of(ledger, run_id, delta=newest[1].delta, budget=newest[1].epsilon)


class LedgerReports:
    """The label ledger as clients see it, read off the event loop. It outlives the runs that it is about."""

    def __init__(
        self, registry: AsyncRegistry, ledger: Ledger, evaluations: EvaluationRegister, threads: DatabaseThreads
    ) -> None:
        self._registry, self._ledger, self._threads = registry, ledger, threads
        self._evaluations = evaluations

    async def of(self, run_id: str) -> Report:
        """A run's entries, their cost, the first broken link of their chain (empty if whole), and its evaluations."""
        spec_yaml = None
        try:
            spec_yaml = (await self._registry.get(run_id)).spec_yaml
        except RunUnknown:
            if await self._threads.read(self._ledger.newest, run_id) is None:
                raise
        return await self._threads.read_within(REPORT_SECONDS, self._read, run_id, spec_yaml)

    def _read(self, run_id: str, spec_yaml: str | None) -> Report:
        entries, broken = entries_of(self._ledger, run_id)
        report = pb.PrivacyReport() if broken else report_of(self._ledger, run_id, spec_yaml)
        return entries, report, broken, evaluations_of(self._evaluations, run_id)
