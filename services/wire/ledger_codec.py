"""Ledgers as messages: what was released, to whom, at what cost, and whether the chain is whole."""

from parley.contracts.ledger.v1 import ledger_pb2 as pb
from parley.privacy.accounting import (
    Composed,
    Event,
    PureAccountant,
    Together,
    from_json,
    online_epsilon,
    reported_epsilon,
)
from parley.privacy.evaluations import EvaluationRegister
from parley.privacy.ledger import Entry, Ledger, LedgerBroken, RunNotOpen


def entries_of(ledger: Ledger, run_id: str) -> tuple[list[pb.LedgerEntry], str]:
    """Every entry of a run, and the first broken link (empty if the chain is whole)."""
    try:
        ledger.verify(run_id)
    except LedgerBroken as broken:
        return _readable(ledger, run_id), str(broken)
    except RunNotOpen:  # a run that has released nothing, or never will
        return [], ""
    return _readable(ledger, run_id), ""


def _readable(ledger: Ledger, run_id: str) -> list[pb.LedgerEntry]:
    """Every entry; none where the file is so damaged that they cannot be read."""
    try:
        return [_entry(entry) for entry in ledger.entries(run_id)]
    except LedgerBroken:
        return []


def report_of(ledger: Ledger, run_id: str, *, delta: float, budget: float) -> pb.PrivacyReport:
    """What a run has spent on the record that was released most often, over all mechanisms that it used."""
    report, counts = pb.PrivacyReport(delta=delta, budget=budget), ledger.counts(run_id)
    if not counts:
        return report
    event: Event = Together(tuple(Composed(from_json(name), each.maximum) for name, each in sorted(counts.items())))
    report.mechanism = next(iter(counts)) if len(counts) == 1 else f"{len(counts)} mechanisms, one after the other"
    report.largest_count = sum(each.maximum for each in counts.values())
    report.pure_epsilon = PureAccountant().epsilon(event)
    report.rdp_epsilon = online_epsilon(event, delta)
    report.pld_epsilon = reported_epsilon(event, delta)
    return report


def evaluations_of(register: EvaluationRegister, run_id: str) -> list[pb.EvaluationCount]:
    """Figures on true labels that a run lets out."""
    return [
        pb.EvaluationCount(name=each.name, rows=each.rows, evaluations=each.evaluations, epsilon=each.epsilon)
        for each in register.of_run(run_id)
    ]


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
