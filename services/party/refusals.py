"""What a party refuses, and how the caller is told. Algorithms bring catalogues of their own."""

from parley.numerics.streams import InvalidStream
from parley.party.peers import PeerFlooded, PeerLost
from parley.party.roles import CheckpointMissing
from parley.privacy.aggregation import SumOutOfRange
from parley.privacy.consent import ConsentDiffers
from parley.privacy.dropout import BothSharesAsked, SharesMissing, SharesNotForUs
from parley.privacy.feature_noise import RowsNotFinite
from parley.privacy.ledger import BudgetExhausted, LedgerConflict, LedgerUnusable
from parley.privacy.noise import EpsilonOutOfRange
from parley.privacy.pairwise import NotAParticipant, RoundReused, SumDoesNotOpen
from parley.privacy.receipts import TranscriptDiffers
from parley.privacy.recovery import StepUnexpected
from parley.privacy.ring import NotRingElements, RingTooSmall, ValueNotFinite, ValueOutOfRange
from parley.privacy.session_keys import KeyRejected
from parley.privacy.shamir import ThresholdImpossible
from parley.privacy.trees import TooFewParties
from parley.privacy.two_tree import SubtreeIncomplete, UnexpectedPartialSum
from parley.protocols.refusals import Catalogue, Refusal
from parley.services.party.approvals import ApprovalMissing
from parley.services.party.asked_rows import TooManyRowsAsked
from parley.services.party.checkpoints import ModelMissing, StorageFailed
from parley.services.party.exposure import ExposureRefused
from parley.services.party.policy import PolicyRefused
from parley.services.party.read_digests import DataChanged
from parley.services.party.serving import DeploymentWithdrawn
from parley.services.party.sessions import (
    PredictionRefused,
    RoundMismatch,
    SessionNotBegun,
    SessionUnknown,
    SpecDiffers,
)
from parley.services.party.tables import TooManySessions
from parley.services.party.versions import VersionMismatch
from parley.spec.parsing import SpecInvalid
from parley.spec.rows import RowsUnavailable
from parley.storage.failures import StorageFailed as DatabaseFailed
from parley.tables.errors import RowsDiffer, TableError, TableUnknown

# These errors quote private values; the caller gets a sentence without them.
_LOOK_AT_DATA = "the party's table cannot be used: its owner finds the file, line and remedy in the party's log"
_OUT_OF_RANGE = (
    "a value does not fit the ring of the secure sum: lower the step sizes, standardise the features, have a `unit` "
    "declared for labels that are large numbers, or raise privacy.aggregation.limit"
)

CATALOGUE: Catalogue = {
    SpecInvalid: Refusal("INVALID_ARGUMENT", "SPEC_INVALID"),
    RowsUnavailable: Refusal("INVALID_ARGUMENT", "SPEC_INVALID"),
    EpsilonOutOfRange: Refusal("INVALID_ARGUMENT", "SPEC_INVALID"),
    InvalidStream: Refusal("INVALID_ARGUMENT", "SPEC_INVALID"),
    VersionMismatch: Refusal("FAILED_PRECONDITION", "VERSION_MISMATCH"),
    PolicyRefused: Refusal("PERMISSION_DENIED", "POLICY_REFUSED"),
    ExposureRefused: Refusal("PERMISSION_DENIED", "EXPOSURE_REFUSED"),
    SumOutOfRange: Refusal("OUT_OF_RANGE", "RANGE_EXCEEDED"),
    ApprovalMissing: Refusal("PERMISSION_DENIED", "APPROVAL_MISSING"),
    SpecDiffers: Refusal("PERMISSION_DENIED", "SPEC_DIFFERS"),
    DeploymentWithdrawn: Refusal("PERMISSION_DENIED", "WITHDRAWN"),
    TooManyRowsAsked: Refusal("RESOURCE_EXHAUSTED", "TOO_MANY_ROWS_ASKED"),
    TooFewParties: Refusal("PERMISSION_DENIED", "POLICY_REFUSED"),
    TableUnknown: Refusal("NOT_FOUND", "TABLE_UNKNOWN"),
    TableError: Refusal("FAILED_PRECONDITION", "DATA_INVALID", _LOOK_AT_DATA),
    RowsNotFinite: Refusal("FAILED_PRECONDITION", "DATA_INVALID", _LOOK_AT_DATA),
    RowsDiffer: Refusal("FAILED_PRECONDITION", "ROWS_DIFFER"),
    DataChanged: Refusal("FAILED_PRECONDITION", "DATA_CHANGED"),
    TooManySessions: Refusal("RESOURCE_EXHAUSTED", "TOO_MANY_SESSIONS"),
    ModelMissing: Refusal("FAILED_PRECONDITION", "MODEL_MISSING"),
    CheckpointMissing: Refusal("FAILED_PRECONDITION", "CHECKPOINT_MISSING"),
    StorageFailed: Refusal("RESOURCE_EXHAUSTED", "STORAGE_FAILED"),
    MemoryError: Refusal("RESOURCE_EXHAUSTED", "TOO_LARGE", "the run asks for more memory than the party has"),
    SessionUnknown: Refusal("NOT_FOUND", "SESSION_UNKNOWN"),
    SessionNotBegun: Refusal("FAILED_PRECONDITION", "SESSION_UNKNOWN"),
    KeyRejected: Refusal("PERMISSION_DENIED", "KEY_REFUSED"),
    ConsentDiffers: Refusal("PERMISSION_DENIED", "CONSENT_DIFFERS"),
    TranscriptDiffers: Refusal("PERMISSION_DENIED", "TRANSCRIPT_DIFFERS"),
    SumDoesNotOpen: Refusal("FAILED_PRECONDITION", "SUM_DOES_NOT_OPEN"),
    RoundMismatch: Refusal("FAILED_PRECONDITION", "ROUND_MISMATCH"),
    StepUnexpected: Refusal("FAILED_PRECONDITION", "ROUND_MISMATCH"),
    BothSharesAsked: Refusal("PERMISSION_DENIED", "BOTH_SHARES_ASKED"),
    SharesNotForUs: Refusal("PERMISSION_DENIED", "SHARES_REFUSED"),
    SharesMissing: Refusal("FAILED_PRECONDITION", "SHARES_REFUSED"),
    ThresholdImpossible: Refusal("PERMISSION_DENIED", "POLICY_REFUSED"),
    RoundReused: Refusal("FAILED_PRECONDITION", "ROUND_MISMATCH"),
    PeerLost: Refusal("UNAVAILABLE", "PEER_LOST"),
    PeerFlooded: Refusal("RESOURCE_EXHAUSTED", "PEER_FLOODED"),
    UnexpectedPartialSum: Refusal("INVALID_ARGUMENT", "MESSAGE_INVALID"),
    SubtreeIncomplete: Refusal("FAILED_PRECONDITION", "SUM_REFUSED"),
    NotRingElements: Refusal("INVALID_ARGUMENT", "MESSAGE_INVALID"),
    NotAParticipant: Refusal("INVALID_ARGUMENT", "MESSAGE_INVALID"),
    RingTooSmall: Refusal("INVALID_ARGUMENT", "SPEC_INVALID"),
    ValueOutOfRange: Refusal("OUT_OF_RANGE", "RANGE_EXCEEDED", _OUT_OF_RANGE),
    ValueNotFinite: Refusal("OUT_OF_RANGE", "RANGE_EXCEEDED"),
    PredictionRefused: Refusal("FAILED_PRECONDITION", "PREDICTION_REFUSED"),
    LedgerConflict: Refusal("FAILED_PRECONDITION", "LEDGER_CONFLICT"),
    LedgerUnusable: Refusal(
        "RESOURCE_EXHAUSTED", "STORAGE_FAILED", "the party's ledger cannot be written; its log says why"
    ),
    DatabaseFailed: Refusal(
        "RESOURCE_EXHAUSTED", "STORAGE_FAILED", "the party's register of exposure cannot be written; its log says why"
    ),
    BudgetExhausted: Refusal("RESOURCE_EXHAUSTED", "BUDGET_EXHAUSTED"),
}
