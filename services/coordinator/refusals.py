"""What a coordinator refuses, and how the caller is told."""

from parley.coordinator.labels import LabelsMissing
from parley.numerics.networks import NetworkError
from parley.numerics.problem_errors import ProblemError, ProblemImportRefused
from parley.privacy.dataset_ledger import RecordsChanged, UnprotectedRefused
from parley.privacy.evaluations import EvaluationRefused, EvaluationsSpent
from parley.privacy.ledger import BudgetExhausted, LedgerBroken, LedgerUnusable, RunNotOpen
from parley.privacy.pairwise import SumDoesNotOpen
from parley.protocols.refusals import Catalogue, Refusal
from parley.services.coordinator.deployment_records import DeploymentUnknown, NoEarlierVersion
from parley.services.coordinator.earlier_runs import StepsDiffer
from parley.services.coordinator.fleet import PartyLost, PartyRefused, PartyUnknown
from parley.services.coordinator.permissions import NotPermitted
from parley.services.coordinator.queue import TooManyRuns
from parley.services.coordinator.registry import RunUnknown
from parley.services.coordinator.runs import (
    PredictionRefused,
    RunActive,
    RunEnded,
    RunUnfinished,
    TagInvalid,
)
from parley.services.coordinator.sessions import ColumnsDiffer
from parley.services.coordinator.warm_models import DeploymentAway
from parley.spec.parsing import SpecInvalid
from parley.spec.rows import RowsUnavailable
from parley.storage.failures import StorageAway, StorageDamaged, StorageFailed
from parley.tables.errors import RowsDiffer, TableError

CATALOGUE: Catalogue = {
    NotPermitted: Refusal("PERMISSION_DENIED", "NOT_PERMITTED"),
    SpecInvalid: Refusal("INVALID_ARGUMENT", "SPEC_INVALID"),
    NetworkError: Refusal("INVALID_ARGUMENT", "NETWORK_REFUSED"),
    ProblemImportRefused: Refusal("PERMISSION_DENIED", "PROBLEM_REFUSED"),
    ProblemError: Refusal("INVALID_ARGUMENT", "PROBLEM_REFUSED"),
    RowsUnavailable: Refusal("INVALID_ARGUMENT", "SPEC_INVALID"),
    PartyUnknown: Refusal("NOT_FOUND", "PARTY_UNKNOWN"),
    PartyLost: Refusal("UNAVAILABLE", "PARTY_UNREACHABLE"),
    PartyRefused: Refusal("FAILED_PRECONDITION", "PARTY_REFUSED"),
    StepsDiffer: Refusal("FAILED_PRECONDITION", "VERSION_MISMATCH"),
    RowsDiffer: Refusal("FAILED_PRECONDITION", "ROWS_DIFFER"),
    ColumnsDiffer: Refusal("FAILED_PRECONDITION", "COLUMNS_DIFFER"),
    SumDoesNotOpen: Refusal("FAILED_PRECONDITION", "SUM_DOES_NOT_OPEN"),
    LabelsMissing: Refusal("NOT_FOUND", "LABELS_MISSING"),
    TableError: Refusal("FAILED_PRECONDITION", "LABELS_INVALID"),
    RunUnknown: Refusal("NOT_FOUND", "RUN_UNKNOWN"),
    RunNotOpen: Refusal("NOT_FOUND", "RUN_UNKNOWN"),
    RunActive: Refusal("FAILED_PRECONDITION", "RUN_ACTIVE"),
    RunEnded: Refusal("FAILED_PRECONDITION", "RUN_ENDED"),
    RunUnfinished: Refusal("FAILED_PRECONDITION", "RUN_UNFINISHED"),
    PredictionRefused: Refusal("FAILED_PRECONDITION", "PREDICTION_REFUSED"),
    DeploymentUnknown: Refusal("NOT_FOUND", "DEPLOYMENT_UNKNOWN"),
    DeploymentAway: Refusal("UNAVAILABLE", "DEPLOYMENT_AWAY"),
    NoEarlierVersion: Refusal("FAILED_PRECONDITION", "NO_EARLIER_VERSION"),
    TagInvalid: Refusal("INVALID_ARGUMENT", "MESSAGE_INVALID"),
    TooManyRuns: Refusal("RESOURCE_EXHAUSTED", "TOO_MANY_RUNS"),
    RecordsChanged: Refusal("FAILED_PRECONDITION", "LABELS_CHANGED"),
    UnprotectedRefused: Refusal("PERMISSION_DENIED", "LABELS_UNPROTECTED"),
    BudgetExhausted: Refusal("RESOURCE_EXHAUSTED", "BUDGET_EXHAUSTED"),
    EvaluationRefused: Refusal("FAILED_PRECONDITION", "EVALUATION_REFUSED"),
    EvaluationsSpent: Refusal("RESOURCE_EXHAUSTED", "EVALUATIONS_SPENT"),
    LedgerBroken: Refusal("DATA_LOSS", "LEDGER_BROKEN"),
    LedgerUnusable: Refusal("RESOURCE_EXHAUSTED", "STORAGE_FAILED"),
    StorageFailed: Refusal("RESOURCE_EXHAUSTED", "STORAGE_FAILED"),
    StorageAway: Refusal("UNAVAILABLE", "STORAGE_AWAY"),
    StorageDamaged: Refusal("DATA_LOSS", "STORAGE_DAMAGED"),
}
