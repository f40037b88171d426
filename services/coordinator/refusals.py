"""What a coordinator refuses, and how the caller is told."""

from grpc import StatusCode
from sqlalchemy.exc import DatabaseError

from parley.numerics.networks import NetworkError
from parley.privacy.ledger import BudgetExhausted, LedgerBroken, LedgerUnusable, RunNotOpen
from parley.services.coordinator.fleet import PartyLost, PartyRefused, PartyUnknown
from parley.services.coordinator.labels import LabelsMissing
from parley.services.coordinator.registry import RunUnknown, StorageFailed
from parley.services.coordinator.runs import PredictionRefused, RunActive, RunEnded, RunUnfinished, TooManyRuns
from parley.services.coordinator.sessions import ColumnsDiffer, RowsDiffer
from parley.services.wire.refusals import Catalogue, Refusal
from parley.spec.parsing import SpecInvalid
from parley.spec.rows import RowsUnavailable
from parley.tables.errors import TableError

CATALOGUE: Catalogue = {
    SpecInvalid: Refusal(StatusCode.INVALID_ARGUMENT, "SPEC_INVALID"),
    NetworkError: Refusal(StatusCode.INVALID_ARGUMENT, "NETWORK_REFUSED"),
    RowsUnavailable: Refusal(StatusCode.INVALID_ARGUMENT, "SPEC_INVALID"),
    PartyUnknown: Refusal(StatusCode.NOT_FOUND, "PARTY_UNKNOWN"),
    PartyLost: Refusal(StatusCode.UNAVAILABLE, "PARTY_UNREACHABLE"),
    PartyRefused: Refusal(StatusCode.FAILED_PRECONDITION, "PARTY_REFUSED"),
    RowsDiffer: Refusal(StatusCode.FAILED_PRECONDITION, "ROWS_DIFFER"),
    ColumnsDiffer: Refusal(StatusCode.FAILED_PRECONDITION, "COLUMNS_DIFFER"),
    LabelsMissing: Refusal(StatusCode.NOT_FOUND, "LABELS_MISSING"),
    TableError: Refusal(StatusCode.FAILED_PRECONDITION, "LABELS_INVALID"),
    RunUnknown: Refusal(StatusCode.NOT_FOUND, "RUN_UNKNOWN"),
    RunNotOpen: Refusal(StatusCode.NOT_FOUND, "RUN_UNKNOWN"),
    RunActive: Refusal(StatusCode.FAILED_PRECONDITION, "RUN_ACTIVE"),
    RunEnded: Refusal(StatusCode.FAILED_PRECONDITION, "RUN_ENDED"),
    RunUnfinished: Refusal(StatusCode.FAILED_PRECONDITION, "RUN_UNFINISHED"),
    PredictionRefused: Refusal(StatusCode.FAILED_PRECONDITION, "PREDICTION_REFUSED"),
    TooManyRuns: Refusal(StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_RUNS"),
    BudgetExhausted: Refusal(StatusCode.RESOURCE_EXHAUSTED, "BUDGET_EXHAUSTED"),
    LedgerBroken: Refusal(StatusCode.DATA_LOSS, "LEDGER_BROKEN"),
    LedgerUnusable: Refusal(StatusCode.RESOURCE_EXHAUSTED, "STORAGE_FAILED"),
    StorageFailed: Refusal(StatusCode.RESOURCE_EXHAUSTED, "STORAGE_FAILED"),
    DatabaseError: Refusal(
        StatusCode.DATA_LOSS, "STORAGE_FAILED", "the coordinator's database cannot be read; its log says why"
    ),
}
