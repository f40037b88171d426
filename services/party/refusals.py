"""What a party refuses, and how the caller is told."""

from grpc import StatusCode

from parley.numerics.few_shot import TooFewExamples
from parley.numerics.gradient_estimators import UnsuitableFeatures
from parley.numerics.networks import NetworkError
from parley.numerics.neumann import SeriesDiverges
from parley.numerics.push_sum import PushSumError
from parley.numerics.storm import InvalidDecay
from parley.numerics.streams import InvalidStream
from parley.party.asysqn import BatchMismatch
from parley.party.asysqn import Diverged as AsysqnDiverged
from parley.party.asysqn_block import LabelsNotHere, RowsNotThere
from parley.party.bambi import IllConditioned, OutcomeMisshapen, OutcomeUnexpected
from parley.party.bilevel_objectives import InvalidData
from parley.party.fedbio import Diverged, InvalidSettings, MeanMismatch
from parley.party.fedbio import RoundMismatch as FedbioRoundMismatch
from parley.party.hgp import Diverged as HgpDiverged
from parley.party.hgp import InvalidHgp
from parley.party.ldp_dsbo import NeighbourMissing, NoDataLeft, UnusableState
from parley.party.ldp_dsbo import StepMismatch as AgentStepMismatch
from parley.party.ldp_objectives import InvalidBounds
from parley.party.models import InvalidModelSize, ModelImportRefused, ModelShapeMismatch, UnknownModel
from parley.privacy.dropout import BothSharesAsked, SharesMissing, SharesNotForUs
from parley.privacy.ldp_accounting import AccountingError
from parley.privacy.ledger import BudgetExhausted, LedgerConflict, LedgerUnusable
from parley.privacy.pairwise import NotAParticipant, RoundReused
from parley.privacy.recovery import StepUnexpected
from parley.privacy.ring import NotRingElements, RingTooSmall, ValueNotFinite, ValueOutOfRange
from parley.privacy.session_keys import KeyRejected
from parley.privacy.shamir import ThresholdImpossible
from parley.privacy.trees import TooFewParties
from parley.privacy.two_tree import SubtreeIncomplete, UnexpectedPartialSum
from parley.services.party.checkpoints import CheckpointMissing, ModelMissing, StorageFailed
from parley.services.party.fedbio_role import ParticipantsRefused, PredictionRefused
from parley.services.party.fedbio_tasks import ImagesUnfit
from parley.services.party.peers import PeerFlooded, PeerLost
from parley.services.party.sessions import PolicyRefused, RoundMismatch, SessionNotBegun, SessionUnknown
from parley.services.party.tables import RowsDiffer, TableUnknown, TooManySessions, VersionMismatch
from parley.services.wire.refusals import Catalogue, Refusal
from parley.spec.parsing import SpecInvalid
from parley.spec.rows import RowsUnavailable
from parley.tables.errors import TableError

# These errors quote private values; the caller gets a sentence without them.
_LOOK_AT_DATA = "the party's table cannot be used: its owner finds the file, line and remedy in the party's log"
_OUT_OF_RANGE = (
    "a value does not fit the ring of the secure sum: lower the step sizes, standardise the features, or raise "
    "privacy.aggregation.limit"
)

CATALOGUE: Catalogue = {
    SpecInvalid: Refusal(StatusCode.INVALID_ARGUMENT, "SPEC_INVALID"),
    RowsUnavailable: Refusal(StatusCode.INVALID_ARGUMENT, "SPEC_INVALID"),
    UnknownModel: Refusal(StatusCode.INVALID_ARGUMENT, "SPEC_INVALID"),
    InvalidStream: Refusal(StatusCode.INVALID_ARGUMENT, "SPEC_INVALID"),
    InvalidModelSize: Refusal(StatusCode.INVALID_ARGUMENT, "SPEC_INVALID"),
    VersionMismatch: Refusal(StatusCode.FAILED_PRECONDITION, "VERSION_MISMATCH"),
    PolicyRefused: Refusal(StatusCode.PERMISSION_DENIED, "POLICY_REFUSED"),
    ModelImportRefused: Refusal(StatusCode.PERMISSION_DENIED, "POLICY_REFUSED"),
    TooFewParties: Refusal(StatusCode.PERMISSION_DENIED, "POLICY_REFUSED"),
    TableUnknown: Refusal(StatusCode.NOT_FOUND, "TABLE_UNKNOWN"),
    TableError: Refusal(StatusCode.FAILED_PRECONDITION, "DATA_INVALID", _LOOK_AT_DATA),
    RowsDiffer: Refusal(StatusCode.FAILED_PRECONDITION, "ROWS_DIFFER"),
    TooManySessions: Refusal(StatusCode.RESOURCE_EXHAUSTED, "TOO_MANY_SESSIONS"),
    ModelMissing: Refusal(StatusCode.FAILED_PRECONDITION, "MODEL_MISSING"),
    CheckpointMissing: Refusal(StatusCode.FAILED_PRECONDITION, "CHECKPOINT_MISSING"),
    StorageFailed: Refusal(StatusCode.RESOURCE_EXHAUSTED, "STORAGE_FAILED"),
    MemoryError: Refusal(StatusCode.RESOURCE_EXHAUSTED, "TOO_LARGE", "the run asks for more memory than the party has"),
    SessionUnknown: Refusal(StatusCode.NOT_FOUND, "SESSION_UNKNOWN"),
    SessionNotBegun: Refusal(StatusCode.FAILED_PRECONDITION, "SESSION_UNKNOWN"),
    KeyRejected: Refusal(StatusCode.PERMISSION_DENIED, "KEY_REFUSED"),
    RoundMismatch: Refusal(StatusCode.FAILED_PRECONDITION, "ROUND_MISMATCH"),
    StepUnexpected: Refusal(StatusCode.FAILED_PRECONDITION, "ROUND_MISMATCH"),
    BothSharesAsked: Refusal(StatusCode.PERMISSION_DENIED, "BOTH_SHARES_ASKED"),
    SharesNotForUs: Refusal(StatusCode.PERMISSION_DENIED, "SHARES_REFUSED"),
    SharesMissing: Refusal(StatusCode.FAILED_PRECONDITION, "SHARES_REFUSED"),
    ThresholdImpossible: Refusal(StatusCode.PERMISSION_DENIED, "POLICY_REFUSED"),
    RoundReused: Refusal(StatusCode.FAILED_PRECONDITION, "ROUND_MISMATCH"),
    OutcomeUnexpected: Refusal(StatusCode.FAILED_PRECONDITION, "ROUND_MISMATCH"),
    AsysqnDiverged: Refusal(StatusCode.OUT_OF_RANGE, "DIVERGED"),
    UnsuitableFeatures: Refusal(StatusCode.FAILED_PRECONDITION, "DATA_INVALID"),
    BatchMismatch: Refusal(StatusCode.INVALID_ARGUMENT, "MESSAGE_INVALID"),
    RowsNotThere: Refusal(StatusCode.INVALID_ARGUMENT, "MESSAGE_INVALID"),
    LabelsNotHere: Refusal(StatusCode.FAILED_PRECONDITION, "LABELS_MISSING"),
    PeerLost: Refusal(StatusCode.UNAVAILABLE, "PEER_LOST"),
    PeerFlooded: Refusal(StatusCode.RESOURCE_EXHAUSTED, "PEER_FLOODED"),
    UnexpectedPartialSum: Refusal(StatusCode.INVALID_ARGUMENT, "MESSAGE_INVALID"),
    SubtreeIncomplete: Refusal(StatusCode.FAILED_PRECONDITION, "SUM_REFUSED"),
    NotRingElements: Refusal(StatusCode.INVALID_ARGUMENT, "MESSAGE_INVALID"),
    IllConditioned: Refusal(StatusCode.OUT_OF_RANGE, "ILL_CONDITIONED"),
    OutcomeMisshapen: Refusal(StatusCode.INVALID_ARGUMENT, "MESSAGE_INVALID"),
    NotAParticipant: Refusal(StatusCode.INVALID_ARGUMENT, "MESSAGE_INVALID"),
    ModelShapeMismatch: Refusal(StatusCode.INVALID_ARGUMENT, "MESSAGE_INVALID"),
    RingTooSmall: Refusal(StatusCode.INVALID_ARGUMENT, "SPEC_INVALID"),
    ValueOutOfRange: Refusal(StatusCode.OUT_OF_RANGE, "RANGE_EXCEEDED", _OUT_OF_RANGE),
    ValueNotFinite: Refusal(StatusCode.OUT_OF_RANGE, "RANGE_EXCEEDED"),
    InvalidSettings: Refusal(StatusCode.INVALID_ARGUMENT, "SPEC_INVALID"),
    InvalidDecay: Refusal(StatusCode.INVALID_ARGUMENT, "SPEC_INVALID"),
    SeriesDiverges: Refusal(StatusCode.OUT_OF_RANGE, "RANGE_EXCEEDED"),
    InvalidData: Refusal(StatusCode.FAILED_PRECONDITION, "DATA_INVALID"),
    ImagesUnfit: Refusal(StatusCode.FAILED_PRECONDITION, "DATA_INVALID"),
    TooFewExamples: Refusal(StatusCode.FAILED_PRECONDITION, "DATA_INVALID"),
    PredictionRefused: Refusal(StatusCode.FAILED_PRECONDITION, "PREDICTION_REFUSED"),
    ParticipantsRefused: Refusal(StatusCode.PERMISSION_DENIED, "PARTICIPANTS_REFUSED"),
    FedbioRoundMismatch: Refusal(StatusCode.FAILED_PRECONDITION, "ROUND_MISMATCH"),
    MeanMismatch: Refusal(StatusCode.INVALID_ARGUMENT, "MESSAGE_INVALID"),
    NetworkError: Refusal(StatusCode.INVALID_ARGUMENT, "NETWORK_REFUSED"),
    PushSumError: Refusal(StatusCode.INVALID_ARGUMENT, "MESSAGE_INVALID"),
    AccountingError: Refusal(StatusCode.INVALID_ARGUMENT, "SPEC_INVALID"),
    InvalidBounds: Refusal(StatusCode.FAILED_PRECONDITION, "DATA_INVALID"),
    NoDataLeft: Refusal(StatusCode.FAILED_PRECONDITION, "DATA_INVALID"),
    NeighbourMissing: Refusal(StatusCode.INVALID_ARGUMENT, "MESSAGE_INVALID"),
    AgentStepMismatch: Refusal(StatusCode.FAILED_PRECONDITION, "ROUND_MISMATCH"),
    UnusableState: Refusal(StatusCode.INVALID_ARGUMENT, "MESSAGE_INVALID"),
    LedgerConflict: Refusal(StatusCode.FAILED_PRECONDITION, "LEDGER_CONFLICT"),
    LedgerUnusable: Refusal(
        StatusCode.RESOURCE_EXHAUSTED, "STORAGE_FAILED", "the party's ledger cannot be written; its log says why"
    ),
    InvalidHgp: Refusal(StatusCode.INVALID_ARGUMENT, "SPEC_INVALID"),
    HgpDiverged: Refusal(StatusCode.OUT_OF_RANGE, "DIVERGED"),
    Diverged: Refusal(StatusCode.OUT_OF_RANGE, "RANGE_EXCEEDED"),
    BudgetExhausted: Refusal(StatusCode.RESOURCE_EXHAUSTED, "BUDGET_EXHAUSTED"),
}
