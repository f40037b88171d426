"""What a run has spent on labels, by the terms of its spec."""

from parley.contracts.ledger.v1 import ledger_pb2 as pb
from parley.privacy.ledger import Ledger
from parley.services.coordinator.registry import RunRecord
from parley.services.wire import ledger_codec
from parley.services.wire.ledger_codec import entries_of as entries_of
from parley.spec.parsing import parse_spec


def report_of(ledger: Ledger, record: RunRecord) -> pb.PrivacyReport:
    """What a run has spent on the record that was released most often."""
    settings = parse_spec(record.spec_yaml).privacy.labels
    return ledger_codec.report_of(ledger, record.run_id, delta=settings.delta, budget=settings.budget or 0.0)
