"""What can leave: one entry for each field of each message.

An auditor reads this table to know what crosses between organisations, what it is derived from, how it is protected
and who sees it in the clear. A descriptor test compares it with the protos: a field that is not listed here, or an
entry without a field, fails the build. Leaks that are not fields have a table of their own below.
"""

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """A field that can leave."""

    field: str
    """Full name of the proto field."""
    derived_from: str
    """The private data it was computed from; `nothing private` for control fields."""
    protection: str
    """What keeps that data private."""
    seen_by: str
    """Who sees the field's value in the clear."""


_PUBLIC = "nothing private"
_NONE_NEEDED = "none needed"
_SUM = "a secure sum over at least the policy's minimum of parties (pairwise, two_tree; plain only by policy)"
_TREES = "uniform ring elements; either tree alone says nothing"
_POWERS = "powers of points of Curve25519: random to whoever lacks the power"
_LABEL_DP = "noisy labels (once or per_step), charged to the label ledger before it leaves"


def _data(field: str, derived_from: str, protection: str, seen_by: str) -> Entry:
    return Entry(f"parley.{field}", derived_from, protection, seen_by)


def _control(message: str, fields: str, seen_by: str) -> Iterator[Entry]:
    """Fields that carry names, counts and choices, nothing of anyone's records."""
    return (Entry(f"parley.{message}.{name}", _PUBLIC, _NONE_NEEDED, seen_by) for name in fields.split())


MANIFEST: tuple[Entry, ...] = (
    # Party → coordinator: contributions to sums.
    _data("bambi.v1.Embedding.sum", "features, x_m, y_m", _SUM, "coordinator: the sum over all parties"),
    _data(
        "bambi.v1.DirectionalShare.sum", "features, x_m, y_m", _SUM, "coordinator: the sum of one scalar per direction"
    ),
    _data("bambi.v1.CurvatureShare.sum", "features, x_m, y_m", _SUM, "coordinator: the sum over all parties"),
    _data(
        "fedbio.v1.LocalState.sum", "a client's rows, labels and model", _SUM, "coordinator: the sum over the clients"
    ),
    _data(
        "fedbio.v1.Measures.sum",
        "a client's losses, mistakes and numbers of rows",
        _SUM,
        "coordinator: the sum over the clients",
    ),
    _data(
        "decentralised.v1.Measures.sum",
        "a party's losses, mistakes, numbers of rows, accuracy and its level, and norm of its hyper-gradient",
        _SUM,
        "coordinator: the sum over all parties",
    ),
    _data(
        "aggregation.v1.Addend.clear",
        "see the message it is in",
        "none; the party's policy must allow plain",
        "coordinator",
    ),
    _data("aggregation.v1.Addend.masked", "see the message it is in", "pairwise masks, uniform in the ring", "nobody"),
    _data(
        "aggregation.v1.SealedShares.sealed",
        "the sender's self-mask seed and round key of one sum",
        "Shamir shares under the pair's key (AES-256-GCM)",
        "the participant that they are for: fewer shares than the threshold",
    ),
    _data(
        "aggregation.v1.DisclosedShare.share",
        "a participant's self-mask seed (it answered) or round key (it was lost)",
        "never both kinds for one participant and sum; opens the sum over the survivors and nothing finer",
        "coordinator",
    ),
    _data("aggregation.v1.Addend.roots", "see the message it is in", _TREES, "coordinator: the sum over all parties"),
    _data(
        "asysqn.v1.ThetaShare.sum", "features and w_ℓ of a party", _SUM, "coordinator: the sum of θ over all parties"
    ),
    # Entity alignment: privacy/psi.py says why nobody learns more than the intersection and sizes.
    _data("alignment.v1.BlindedIds.points", "ids of the label table", _POWERS, "nobody"),
    _data(
        "alignment.v1.EvaluatedIds.points", "ids of the label table", f"{_POWERS}, shuffled by all parties", "nobody"
    ),
    _data(
        "alignment.v1.TableSlots.slots",
        "ids of a party",
        "shares of 0 under a pseudo-random function of each id, in a table that is random to anyone else",
        "coordinator: whether all parties have one of its own ids",
    ),
    _data(
        "alignment.v1.Matches.tags",
        "ids of the intersection",
        "a pseudo-random function of the receiver's",
        "the party: its own ids that all others have",
    ),
    _data(
        "alignment.v1.Matches.total",
        "the size of the intersection",
        "none; at least what the parties' policies ask for, or no id is named",
        "all organisations of the alignment",
    ),
    _data(
        "alignment.v1.Begun.sealed_shares", "a random key", "sealed for each other party (ChaCha20-Poly1305)", "parties"
    ),
    _data(
        "alignment.v1.Shuffle.sealed_shares", "a random key", "sealed for the receiver (ChaCha20-Poly1305)", "the party"
    ),
    _data(
        "alignment.v1.Accepted.shuffle_share",
        "a random key",
        "leaves once the party has seen the intersection and its policy accepts it",
        "coordinator: with all shares, its own ids that all parties have",
    ),
    _data(
        "alignment.v1.Commit.id_digest",
        "ids of the intersection",
        "SHA-256; the receiver knows these ids and compares",
        "the party",
    ),
    _data("alignment.v1.Open.coordinator_ids", "the number of labels", "none: a size", "the party"),
    *(
        _data(f"alignment.v1.Opened.{size}", "a party's id column", "none: a size", "coordinator")
        for size in ("rows", "missing", "duplicates", "ids")
    ),
    *(
        _data(f"run.v1.AlignedTable.{size}", "an organisation's id column", "none: a size", "clients")
        for size in ("rows", "missing", "duplicates", "ids")
    ),
    _data("run.v1.AlignResponse.matched", "the size of the intersection", "none: a size", "clients"),
    _data("run.v1.AlignResponse.id_digest", "ids of the intersection", "SHA-256", "clients"),
    # Party → party.
    _data(
        "asysqn.v1.Share.sum",
        "features and w_ℓ of a party",
        _SUM,
        "the party that asked: the sum of θ over all parties. Many sums on known rows determine w_ℓ by linear algebra",
    ),
    _data("asysqn.v1.PartialTheta.masked_theta", "features and w_ℓ of a subtree", _TREES, "nobody"),
    _data("aggregation.v1.MaskedTheta.elements", "features and model of a subtree", _TREES, "nobody"),
    _data("peer.v1.PushRequest.masked_theta", "features and model of a subtree", _TREES, "nobody"),
    _data(
        "decentralised.v1.PushSumVector.z",
        "the sender's gradients and state",
        "none; a party's policy must allow hgp",
        "the neighbour",
    ),
    _data("decentralised.v1.PushSumVector.omega", _PUBLIC, _NONE_NEEDED, "the neighbour"),
    _data(
        "decentralised.v1.PushSumVector.total_z",
        "the sender's gradients and state",
        "none; a party's policy must allow hgp",
        "the neighbour",
    ),
    _data("decentralised.v1.PushSumVector.total_omega", _PUBLIC, _NONE_NEEDED, "the neighbour"),
    _data(
        "decentralised.v1.NoisedState.noised_x",
        "the sender's records",
        "Laplace noise at the sender, in its ledger",
        "the neighbours",
    ),
    _data(
        "decentralised.v1.NoisedState.noised_y",
        "the sender's records",
        "Laplace noise at the sender, in its ledger",
        "the neighbours",
    ),
    _data(
        "decentralised.v1.NoisedState.noised_z",
        "the sender's records",
        "Laplace noise at the sender, in its ledger",
        "the neighbours",
    ),
    # Coordinator → parties.
    _data("bambi.v1.IntermediateGradient.theta", "labels and the summed embedding", _LABEL_DP, "all parties"),
    _data("bambi.v1.IntermediateGradient.vartheta", "labels and the summed embedding", _LABEL_DP, "all parties"),
    _data(
        "bambi.v1.IntermediateGradient.step_length", "noisy labels that were paid for", "post-processing", "all parties"
    ),
    _data("bambi.v1.Coefficients.values", "sums over all parties", "only sums reach the coordinator", "all parties"),
    _data(
        "bambi.v1.CurvatureStep.product",
        "sums over all parties; no label",
        "only sums reach the coordinator",
        "all parties",
    ),
    _data(
        "bambi.v1.CurvatureStep.alpha",
        "sums over all parties; no label",
        "only sums reach the coordinator",
        "all parties",
    ),
    _data(
        "bambi.v1.CurvatureStep.beta",
        "sums over all parties; no label",
        "only sums reach the coordinator",
        "all parties",
    ),
    _data(
        "bambi.v1.CurvatureStep.solution_product",
        "sums over all parties; no label",
        "only sums reach the coordinator",
        "all parties",
    ),
    _data(
        "fedbio.v1.Instruction.mean",
        "rows, labels and models of the participants",
        "an average of secure sums; nothing is added to it",
        "all parties and the coordinator",
    ),
    _data(
        "asysqn.v1.OpenedTheta.values",
        "features and models of all parties",
        "a secure sum; only where the parties hold the labels themselves",
        "all parties",
    ),
    _data("asysqn.v1.Slopes.derivative", "labels and the sum of θ", _LABEL_DP, "the parties whose step it is"),
    # Party → coordinator: a sum that the party opened.
    _data(
        "coordinator.v1.SlopesQuestion.opened_theta",
        "features and models of all parties",
        "a secure sum over all parties",
        "coordinator and the party that asked",
    ),
    # Party → coordinator: what a session says about the data.
    _data(
        "party.v1.OpenSessionResponse.rows",
        "the table's size",
        "a count of aligned rows, the same at all parties",
        "coordinator",
    ),
    _data(
        "party.v1.OpenSessionResponse.id_digest",
        "the row ids",
        "SHA-256 of all ids together; a guess of the whole set can be checked",
        "coordinator",
    ),
    _data(
        "party.v1.OpenSessionResponse.column_digest",
        "the column names",
        "SHA-256 of all names together; a guess of the whole list can be checked",
        "coordinator",
    ),
    _data("party.v1.OpenSessionResponse.features", "the table's width", "a count", "coordinator"),
    _data("party.v1.OpenSessionResponse.warnings", "the table's columns", "sentences without values", "coordinator"),
    _data("party.v1.OpenSessionResponse.ids", "the row ids", "sent only for a prediction of every row", "coordinator"),
    _data("party.v1.TableSummary.rows", "the table's size", "a count", "coordinator"),
    _data("party.v1.TableSummary.features", "the table's width", "a count", "coordinator"),
    # Coordinator → its own clients: the label holder's eyes.
    _data(
        "run.v1.Metric.value",
        "labels and predictions",
        "shown to clients of the label holder only, never to parties",
        "clients",
    ),
    _data("run.v1.PredictResponse.scores", "features at all parties", "a function of sums over all parties", "clients"),
    _data("run.v1.PredictResponse.ids", "the row ids", "rows that the client asked for", "clients"),
    _data("run.v1.PredictResponse.classes", "names of the classes", "known to the label holder", "clients"),
    _data("run.v1.PredictRequest.ids", "the row ids", "rows that the client asks for", "coordinator"),
    _data("party.v1.OpenSessionRequest.ids", "the row ids", "rows that the client asks for", "all parties"),
    _data("tensor.v1.Tensor.data", "see the field it is in", "that field's", "that field's"),
    _data("tensor.v1.Chunk.data", "see the field it is in", "that field's", "that field's"),
    # Control: names, counts and choices.
    *_control("tensor.v1.Tensor", "element_type shape chunked_bytes", "the receiver"),
    *_control("aggregation.v1.MaskedTheta", "tree round participants", "the parent in the tree"),
    *_control("aggregation.v1.Addend", "participants", "coordinator"),
    *_control("aggregation.v1.SignedKey", "party public_key certificate signature", "all parties"),
    *_control("aggregation.v1.RecoveryStep", "sum_id key shares values disclosure", "the participants"),
    *_control("aggregation.v1.SharesStep", "keys", "the participants"),
    *_control("aggregation.v1.ValuesStep", "shares", "the participant that they are for"),
    *_control("aggregation.v1.DisclosureStep", "survivors", "the participants"),
    *_control("aggregation.v1.RoundKey", "party public_key", "the participants"),
    *_control("aggregation.v1.SealedShares", "party", "the coordinator, which passes them on"),
    *_control("aggregation.v1.ShareBundle", "shares", "the coordinator, which passes them on"),
    *_control("aggregation.v1.DisclosedShare", "party", "coordinator"),
    *_control("aggregation.v1.Disclosure", "seeds keys next_key", "coordinator"),
    *_control(
        "bambi.v1.Instruction",
        "round gradient coefficients curvature lower_forward upper_forward "
        "directional_forward curvature_forward rows_forward checkpoint finish",
        "all parties",
    ),
    *_control("bambi.v1.LowerForward", "k t", "all parties"),
    *_control("bambi.v1.UpperForward", "k", "all parties"),
    *_control("bambi.v1.DirectionalForward", "k", "all parties"),
    *_control("bambi.v1.CurvatureForward", "k system iteration", "all parties"),
    *_control("bambi.v1.RowsForward", "rows first count", "all parties"),
    *_control("bambi.v1.Checkpoint", "k", "all parties"),
    *_control("bambi.v1.Contribution", "round embedding directional curvature acknowledgement", "coordinator"),
    *_control("fedbio.v1.LocalState", "phase", "coordinator"),
    *_control("fedbio.v1.SettledSum", "phase k participants", "coordinator"),
    *_control("fedbio.v1.Instruction", "round phase k participants recovery", "the participants"),
    *_control(
        "fedbio.v1.Contribution", "round state measures acknowledgement round_key shares disclosure", "coordinator"
    ),
    *_control("asysqn.v1.Batch", "k t", "all parties"),
    *_control("asysqn.v1.ThetaRequest", "round batch all_rows", "all parties"),
    *_control("asysqn.v1.PartialTheta", "requester share", "the parent in the tree, or the party that asked"),
    *_control("asysqn.v1.Share", "round", "the party that asked"),
    *_control(
        "asysqn.v1.Instruction",
        "round opened slopes theta_forward start report look halt checkpoint finish",
        "all parties",
    ),
    *_control("asysqn.v1.ThetaForward", "batch all_rows", "all parties"),
    *_control("asysqn.v1.Look", "rows first count", "all parties"),
    *_control("asysqn.v1.Checkpoint", "k", "all parties"),
    _data("asysqn.v1.Contribution.theta", "features and w_ℓ of a party", _SUM, "coordinator: the sum over all parties"),
    *_control("asysqn.v1.Contribution", "round acknowledgement progress", "coordinator"),
    *_control(
        "asysqn.v1.Progress",
        "party updates calls peer_bytes busy_seconds loop_seconds staleness updates_alone",
        "coordinator",
    ),
    *_control("coordinator.v1.SlopesQuestion", "session_id batch all_rows", "coordinator"),
    *_control("coordinator.v1.AskSlopesRequest", "question chunk following_bytes", "coordinator"),
    *_control("coordinator.v1.AskSlopesResponse", "slopes chunk following_bytes", "the party that asked"),
    *_control("decentralised.v1.PushSumVector", "step sequence", "the neighbour"),
    *_control("decentralised.v1.NoisedState", "step", "the neighbours"),
    *_control("decentralised.v1.Instruction", "round phase k first last", "all parties"),
    *_control(
        "decentralised.v1.Contribution", "round measures acknowledgement party peer_messages peer_bytes", "coordinator"
    ),
    *_control("alignment.v1.Open", "alignment_id name table parties duplicates version", "the party"),
    *_control("alignment.v1.Opened", "key", "coordinator, other parties"),
    *_control("alignment.v1.Begin", "keys", "the party"),
    *_control("alignment.v1.TableSlots", "salt", "coordinator"),
    *_control("alignment.v1.IntersectRequest", "open begin shuffle blinded_ids matches commit", "the party"),
    *_control(
        "alignment.v1.IntersectResponse", "opened begun evaluated_ids table_slots accepted committed", "coordinator"
    ),
    *_control("coordinator.v1.AnnounceRequest", "version", "coordinator"),
    *_control("coordinator.v1.AnnounceResponse", "version waiting_runs", "the party"),
    *_control("party.v1.TableSummary", "name problem", "coordinator"),
    *_control(
        "party.v1.DescribeResponse", "name version tables algorithms aggregations sessions clock_seconds", "coordinator"
    ),
    *_control("party.v1.OpenSessionRequest", "run_id session_id spec_yaml version purpose table", "all parties"),
    *_control("party.v1.OpenSessionResponse", "upper_size key checkpoints settled", "coordinator"),
    *_control(
        "party.v1.BeginSessionRequest",
        "session_id keys upper_sizes checkpoint peer_addresses outputs settled",
        "all parties",
    ),
    *_control("party.v1.Attach", "session_id", "the party"),
    *_control(
        "party.v1.ExchangeRequest", "attach bambi fedbio asysqn decentralised chunk following_bytes", "all parties"
    ),
    *_control("party.v1.ExchangeResponse", "bambi fedbio asysqn decentralised chunk following_bytes", "coordinator"),
    *_control("party.v1.CloseSessionRequest", "session_id", "the party"),
    *_control("peer.v1.Attach", "session_id", "the peer"),
    *_control(
        "peer.v1.PushRequest",
        "attach theta_request partial_theta push_sum noised_state chunk following_bytes",
        "the peer",
    ),
    *_control(
        "ledger.v1.LedgerEntry",
        "sequence time kind mechanism recipients first_release releases records epsilon delta largest_count hash",
        "clients",
    ),
    *_control(
        "ledger.v1.PrivacyReport",
        "mechanism pure_epsilon rdp_epsilon pld_epsilon delta largest_count budget",
        "clients",
    ),
    *_control("run.v1.Metric", "name", "clients"),
    *_control(
        "run.v1.Run",
        "run_id name algorithm state reason parties step steps metrics created changed spec_yaml attempt",
        "clients",
    ),
    *_control("run.v1.RunEvent", "sequence time kind message step metrics state", "clients"),
    *_control("run.v1.SpecProblem", "field line message", "clients"),
    *_control(
        "run.v1.PartyStatus",
        "name address reachable version problem tables latency_milliseconds clock_skew_seconds offers algorithms "
        "aggregations",
        "clients",
    ),
    _data("run.v1.PartyTable.rows", "the table's size", "a count", "clients"),
    _data("run.v1.PartyTable.features", "the table's width", "a count", "clients"),
    *_control("run.v1.PartyTable", "name problem", "clients"),
    *_control("run.v1.CheckSpecRequest", "spec_yaml", "coordinator"),
    *_control("run.v1.CheckSpecResponse", "problems", "clients"),
    *_control("run.v1.StartRunRequest", "request_id spec_yaml", "coordinator"),
    *_control("run.v1.StartRunResponse", "run", "clients"),
    *_control("run.v1.GetRunRequest", "run_id", "coordinator"),
    *_control("run.v1.GetRunResponse", "run", "clients"),
    *_control("run.v1.ListRunsRequest", "page_size", "coordinator"),
    *_control("run.v1.ListRunsResponse", "runs", "clients"),
    *_control("run.v1.WatchRunRequest", "run_id after_sequence", "coordinator"),
    *_control("run.v1.WatchRunResponse", "event run", "clients"),
    *_control("run.v1.CancelRunRequest", "run_id", "coordinator"),
    *_control("run.v1.CancelRunResponse", "run", "clients"),
    *_control("run.v1.ResumeRunRequest", "run_id", "coordinator"),
    *_control("run.v1.ResumeRunResponse", "run", "clients"),
    *_control("run.v1.PredictRequest", "run_id table", "coordinator"),
    *_control("run.v1.ListPartiesResponse", "parties version clock_seconds", "clients"),
    *_control("run.v1.AlignedParty", "name table", "coordinator"),
    *_control("run.v1.AlignRequest", "name parties labels duplicates", "coordinator"),
    *_control("run.v1.AlignedTable", "holder table", "clients"),
    *_control("run.v1.AlignResponse", "stage done total finished tables", "clients"),
    *_control("run.v1.GetLedgerRequest", "run_id", "coordinator"),
    *_control("run.v1.GetLedgerResponse", "entries report broken", "clients"),
)


@dataclass(frozen=True)
class Leak:
    """Something that can leave without being a field."""

    channel: str
    what: str
    answer: str


OTHER_LEAKS: tuple[Leak, ...] = (
    Leak(
        "error text",
        "values quoted by an error",
        "errors that quote private values have a public sentence in the service's "
        "catalogue; anything unknown is told as INTERNAL",
    ),
    Leak("sizes", "message sizes", "sizes follow from the spec (batch, classes, trajectories), which is public"),
    Leak(
        "timing",
        "how long a party computes",
        "not hidden; it depends on sizes and machines, weakly on sparsity of features",
    ),
    Leak(
        "logs",
        "what a service writes",
        "constant messages, ids and counts; never a tensor; an error that quotes a value is written without it",
    ),
    Leak("metrics", "what a service counts", "calls, bytes, rounds and times, by names that are not data"),
    Leak(
        "checkpoints",
        "model and optimiser state on a party's disk, and what preprocessing learnt: medians, means, categories",
        "stay with the party; file permissions are its owner's",
    ),
    Leak(
        "encoded columns",
        "how many categories a party's columns have",
        "the coordinator sees the width of a table once it is encoded; `max_categories` bounds it, a declared list of "
        "categories fixes it",
    ),
    Leak(
        "early stop",
        "when a run ends",
        "runs end after the spec's number of steps, by a client, or by budget; by loss only where the parties hold the "
        "labels themselves, or label privacy is off (asysqn's `target`)",
    ),
    Leak(
        "models",
        "a party's own x_m and y_m after training",
        "stay with the party; they are post-processing of what it received",
    ),
)
