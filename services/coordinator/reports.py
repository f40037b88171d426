"""Ledgers as messages: what was released, to whom, at what cost, and whether the chain is whole."""

from contracts.ledger.v1 import ledger_pb2 as pb
from privacy.accounting import Composed, PureAccountant, from_json, online_epsilon, reported_epsilon
from privacy.ledger import Entry, Ledger, LedgerBroken, RunNotOpen
from services.coordinator.registry import RunRecord
from spec.parsing import parse_spec


def entries_of(ledger: Ledger, run_id: str) -> tuple[list[pb.LedgerEntry], str]:
    """Every entry of a run, and the first broken link (empty if the chain is whole)."""
    entries = [_entry(entry) for entry in ledger.entries(run_id)]
    try:
        ledger.verify(run_id)
    except LedgerBroken as broken:
        return entries, str(broken)
    except RunNotOpen:  # a run that has released no label, or never will
        return entries, ""
    return entries, ""


def report_of(ledger: Ledger, record: RunRecord) -> pb.PrivacyReport:
    """What a run has spent on the record that was released most often."""
    settings = parse_spec(record.spec_yaml).privacy.labels
    report = pb.PrivacyReport(delta=settings.delta, budget=settings.budget or 0.0)
    for name, counts in ledger.counts(record.run_id).items():
        event = Composed(from_json(name), counts.maximum)
        report.mechanism = name
        report.largest_count = counts.maximum
        report.pure_epsilon = PureAccountant().epsilon(event)
        report.rdp_epsilon = online_epsilon(event, settings.delta)
        report.pld_epsilon = reported_epsilon(event, settings.delta)
    return report


def _entry(entry: Entry) -> pb.LedgerEntry:
    return pb.LedgerEntry(
        sequence=entry.sequence,
        time=entry.time,
        kind=entry.kind,
        mechanism=entry.mechanism,
        recipients=entry.recipients,
        first_release=entry.first_release,
        releases=entry.release_count,
        records=entry.records,
        epsilon=entry.epsilon,
        delta=entry.delta,
        largest_count=entry.largest_count,
        hash=entry.hash,
    )
