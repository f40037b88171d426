"""What can leave: one entry for each field of each message.

An auditor reads this table to know what crosses between organisations, what it is derived from, how it is protected
and who sees it in the clear. This one has what every algorithm shares; each algorithm lists its own messages in its
`crossings.py`, and `parley.protocols.manifest` puts them together. A descriptor test compares the whole with the
protos: a field that is not listed, or an entry without a field, fails the build. Leaks that are not fields have a table
of their own below.
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


PUBLIC = "nothing private"
NONE_NEEDED = "none needed"
SECURE_SUM = "a secure sum over at least the policy's minimum of parties (pairwise, two_tree; plain only by policy)"
TREE_SUM = "uniform ring elements; either tree alone says nothing"
_POWERS = "powers of points of Curve25519: random to whoever lacks the power"
RELAYED = "any message of this table, on its way through a relay"
END_TO_END = "mutual TLS between the two services' own certificates, inside which the message's own protection stands"
_TUNNELLED = ("AcceptRequest", "AcceptResponse", "ConnectRequest", "ConnectResponse")
LABEL_PRIVACY = "noisy labels (once or per_step), charged to the label ledger before it leaves"


@dataclass(frozen=True)
class Package:
    """Makes entries for the messages of one proto package."""

    name: str

    def derived(self, field: str, derived_from: str, protection: str, seen_by: str) -> Entry:
        """A field that is computed from somebody's records, or says something about them."""
        return Entry(f"{self.name}.{field}", derived_from, protection, seen_by)

    def control(self, message: str, fields: str, seen_by: str) -> Iterator[Entry]:
        """Fields that carry names, counts and choices, nothing of anyone's records."""
        return (Entry(f"{self.name}.{message}.{name}", PUBLIC, NONE_NEEDED, seen_by) for name in fields.split())


derived, control = Package("parley").derived, Package("parley").control


MANIFEST: tuple[Entry, ...] = (
    # Party → coordinator: contributions to sums.
    derived(
        "aggregation.v1.Addend.clear",
        "see the message it is in",
        "none; the party's policy must allow plain",
        "coordinator",
    ),
    derived(
        "aggregation.v1.Addend.masked", "see the message it is in", "pairwise masks, uniform in the ring", "nobody"
    ),
    derived(
        "aggregation.v1.SealedShares.sealed",
        "the sender's self-mask seed and round key of one sum",
        "Shamir shares under the pair's key (AES-256-GCM)",
        "the participant that they are for: fewer shares than the threshold",
    ),
    derived(
        "aggregation.v1.DisclosedShare.share",
        "a participant's self-mask seed (it answered) or round key (it was lost)",
        "never both kinds for one participant and sum; opens the sum over the survivors and nothing finer",
        "coordinator",
    ),
    derived(
        "aggregation.v1.Addend.roots", "see the message it is in", TREE_SUM, "coordinator: the sum over all parties"
    ),
    # Entity alignment: privacy/psi.py says what is learnt, the intersection and sizes, and why.
    derived("alignment.v1.BlindedIds.points", "ids of the label table", _POWERS, "nobody"),
    derived(
        "alignment.v1.EvaluatedIds.points", "ids of the label table", f"{_POWERS}, shuffled by all parties", "nobody"
    ),
    derived(
        "alignment.v1.TableSlots.slots",
        "ids of a party",
        "shares of 0 under a pseudo-random function of each id, in a table that is random to anyone else",
        "coordinator: whether all parties have one of its own ids",
    ),
    derived(
        "alignment.v1.Matches.tags",
        "ids of the intersection",
        "a pseudo-random function of the receiver's",
        "the party: its own ids that all others have",
    ),
    derived(
        "alignment.v1.Matches.total",
        "the size of the intersection",
        "none; at least what the parties' policies ask for, or no id is named",
        "all organisations of the alignment",
    ),
    derived(
        "alignment.v1.Begun.sealed_shares", "a random key", "sealed for each other party (ChaCha20-Poly1305)", "parties"
    ),
    derived(
        "alignment.v1.Shuffle.sealed_shares", "a random key", "sealed for the receiver (ChaCha20-Poly1305)", "the party"
    ),
    derived(
        "alignment.v1.Accepted.shuffle_share",
        "a random key",
        "leaves once the party has seen the intersection and its policy accepts it",
        "coordinator: with all shares, its own ids that all parties have",
    ),
    derived(
        "alignment.v1.Commit.id_digest",
        "ids of the intersection",
        "SHA-256; the receiver knows these ids and compares",
        "the party",
    ),
    derived("alignment.v1.Open.coordinator_ids", "the number of labels", "none: a size", "the party"),
    *(
        derived(f"alignment.v1.Opened.{size}", "a party's id column", "none: a size", "coordinator")
        for size in ("rows", "missing", "duplicates", "ids")
    ),
    *(
        derived(f"run.v1.AlignedTable.{size}", "an organisation's id column", "none: a size", "clients")
        for size in ("rows", "missing", "duplicates", "ids")
    ),
    derived("run.v1.AlignResponse.matched", "the size of the intersection", "none: a size", "clients"),
    derived("run.v1.AlignResponse.id_digest", "ids of the intersection", "SHA-256", "clients"),
    # Party → party.
    derived("aggregation.v1.MaskedTheta.elements", "features and model of a subtree", TREE_SUM, "nobody"),
    derived("peer.v1.PushRequest.masked_theta", "features and model of a subtree", TREE_SUM, "nobody"),
    # Party → coordinator: what a session says about the data.
    derived(
        "party.v1.OpenSessionResponse.rows",
        "the table's size",
        "a count of aligned rows, the same at all parties",
        "coordinator",
    ),
    derived(
        "party.v1.OpenSessionResponse.id_digest",
        "the row ids",
        "SHA-256 of all ids together; a guess of the whole set can be checked",
        "coordinator",
    ),
    derived(
        "party.v1.OpenSessionResponse.column_digest",
        "the column names",
        "SHA-256 of all names together; a guess of the whole list can be checked",
        "coordinator",
    ),
    derived("party.v1.OpenSessionResponse.features", "the table's width", "a count", "coordinator"),
    derived("party.v1.OpenSessionResponse.warnings", "the table's columns", "sentences without values", "coordinator"),
    derived("party.v1.OpenSessionResponse.ids", "the row ids", "never sent: a party tells no ids", "nobody"),
    *(
        derived(
            f"party.v1.TunedCoefficient.{name}",
            "the party's features and the labels (noisy ones unless the run protects none), through its model",
            "three digits, and only if the party's policy shares its coefficients",
            "coordinator and its clients",
        )
        for name in ("value", "standard_error", "p_value", "low", "high")
    ),
    derived(
        "party.v1.TunedCoefficient.column",
        "the column names",
        "only if the party's policy shares coefficients by column",
        "coordinator and its clients",
    ),
    *control("party.v1.TunedCoefficient", "figure", "coordinator and its clients"),
    *control("party.v1.GetCoefficientsRequest", "run_id page_token", "the party"),
    *control("party.v1.GetCoefficientsResponse", "coefficients kept next_page_token", "coordinator"),
    derived("party.v1.TableSummary.rows", "the table's size", "a count", "coordinator"),
    derived("party.v1.TableSummary.features", "the table's width", "a count", "coordinator"),
    # Coordinator → its own clients: the label holder's eyes.
    derived(
        "run.v1.Metric.value",
        "labels and predictions",
        "over at least minimum_evaluation rows, counted across runs; noise where evaluation_epsilon is set",
        "clients that may watch; never parties",
    ),
    derived(
        "run.v1.PredictResponse.scores", "features at all parties", "a function of sums over all parties", "clients"
    ),
    derived("run.v1.PredictResponse.ids", "the row ids", "rows that the client asked for", "clients"),
    derived("run.v1.PredictResponse.classes", "names of the classes", "known to the label holder", "clients"),
    derived("run.v1.PredictRequest.ids", "the row ids", "rows that the client asks for", "coordinator"),
    derived(
        "run.v1.PredictRowsResponse.scores",
        "features at all parties",
        "a function of sums over all parties; of a block that the caller brings, over the others",
        "the client that asked",
    ),
    derived(
        "run.v1.PredictRowsResponse.classes",
        "names of the classes",
        "known to the label holder",
        "the client that asked",
    ),
    derived("run.v1.PredictRowsRequest.ids", "the row ids", "rows that the client asks for", "coordinator"),
    *(
        derived(
            f"run.v1.CallerFeatures.{name}",
            "a record that the client has itself",
            "sent to the block's own party alone, and only if every party's `predictions.given` names it",
            "coordinator, the party whose block it is",
        )
        for name in ("columns", "values")
    ),
    derived(
        "serving.v1.ServedRows.ids",
        "the row ids",
        "rows that clients ask for; each party counts and limits them",
        "all parties",
    ),
    *(
        derived(
            f"serving.v1.GivenRow.{name}",
            "a record that a client has itself",
            "sent to the block's own party alone, and only if every party's `predictions.given` names it",
            "the party whose block it is",
        )
        for name in ("columns", "values")
    ),
    derived(
        "serving.v1.Declined.rows",
        "the row ids",
        "whether this party has rows that the coordinator named; counted and limited as every question is",
        "coordinator",
    ),
    derived(
        "party.v1.OpenSessionRequest.ids",
        "the row ids",
        "rows that the client asks for, in a prediction; each party counts and limits them",
        "all parties",
    ),
    derived("tensor.v1.Tensor.data", "see the field it is in", "that field's", "that field's"),
    derived("tensor.v1.Chunk.data", "see the field it is in", "that field's", "that field's"),
    derived("extension.v1.Extension.content", "see the entries of its algorithm", "that field's", "that field's"),
    *control("extension.v1.Extension", "algorithm type", "the receiver"),
    # Control: names, counts and choices.
    *control("tensor.v1.Tensor", "element_type shape chunked_bytes exponent", "the receiver"),
    *control("aggregation.v1.MaskedTheta", "tree round participants", "the parent in the tree"),
    *control("aggregation.v1.Addend", "participants further_participants", "coordinator"),
    *control("aggregation.v1.SignedKey", "party public_key certificate signature agreement", "all parties"),
    *control("aggregation.v1.Agreement", "purpose spec_digest nonce upper_size protocol", "all parties"),
    derived(
        "aggregation.v1.Agreement.rows",
        "the table's size",
        "a count of aligned rows, the same at all parties; 0 where rows are not common",
        "all parties",
    ),
    derived(
        "aggregation.v1.Agreement.id_digest",
        "the row ids",
        "SHA-256 of all ids together, the same at all parties; empty where rows are not common",
        "all parties",
    ),
    *control("aggregation.v1.RecoveryStep", "sum_id key shares values disclosure", "the participants"),
    *control("aggregation.v1.SharesStep", "keys instruction", "the participants"),
    *control("aggregation.v1.ValuesStep", "shares", "the participant that they are for"),
    *control("aggregation.v1.DisclosureStep", "survivors further_survivors", "the participants"),
    *control("aggregation.v1.RoundKey", "party public_key", "the participants"),
    *control("aggregation.v1.SealedShares", "party", "the coordinator, which passes them on"),
    *control("aggregation.v1.ShareBundle", "shares", "the coordinator, which passes them on"),
    *control("aggregation.v1.DisclosedShare", "party", "coordinator"),
    *control("aggregation.v1.Disclosure", "seeds keys next_key", "coordinator"),
    *control("coordinator.v1.AskSlopesRequest", "question chunk following_bytes", "coordinator"),
    *control("coordinator.v1.AskSlopesResponse", "slopes chunk following_bytes", "the party that asked"),
    *control(
        "alignment.v1.Open",
        "alignment_id name table parties duplicates version protocol evaluated_held slots_held",
        "the party",
    ),
    *control("alignment.v1.Opened", "key", "coordinator, other parties"),
    *control("alignment.v1.Opened", "blinded_held", "coordinator"),
    *control("alignment.v1.Begin", "keys", "the party"),
    *control("alignment.v1.TableSlots", "salt", "coordinator"),
    *control("alignment.v1.IntersectRequest", "open begin shuffle blinded_ids matches commit", "the party"),
    *control(
        "alignment.v1.IntersectResponse", "opened begun evaluated_ids table_slots accepted committed", "coordinator"
    ),
    *control("relay.v1.RegisterRequest", "version", "relay"),
    *control("relay.v1.RegisterResponse", "connection_id", "the party that registered"),
    *control("relay.v1.AcceptRequest", "connection_id", "relay"),
    *control("relay.v1.ConnectRequest", "party", "relay"),
    *(
        derived(f"relay.v1.{message}.data", RELAYED, END_TO_END, "nobody between the two ends")
        for message in _TUNNELLED
    ),
    *control("coordinator.v1.AnnounceRequest", "version", "coordinator"),
    *control("coordinator.v1.AnnounceResponse", "version waiting_runs", "the party"),
    *control("party.v1.TableSummary", "name problem notice loaded_percent", "coordinator"),
    *control("party.v1.DescribeRequest", "brief", "the party"),
    *control(
        "party.v1.DescribeResponse",
        "name version tables algorithms aggregations sessions clock_seconds protocols",
        "coordinator",
    ),
    *control(
        "party.v1.OpenSessionRequest",
        "run_id session_id spec_yaml version purpose table deployment protocol",
        "all parties",
    ),
    *control("party.v1.OpenSessionResponse", "upper_size key checkpoints settled", "coordinator"),
    *control(
        "party.v1.BeginSessionRequest",
        "session_id keys upper_sizes checkpoint peer_addresses outputs settled run_checkpoint",
        "all parties",
    ),
    *control("party.v1.Attach", "session_id", "the party"),
    *control(
        "party.v1.ExchangeRequest",
        "attach extension chunk following_bytes receipts ledger_entries ledger_head served features",
        "all parties",
    ),
    *control("party.v1.ExchangeResponse", "extension chunk following_bytes receipt declined", "coordinator"),
    *control("serving.v1.ServedRows", "callers asked_by given", "all parties"),
    *control("serving.v1.GivenBlock", "party rows", "all parties"),
    *control("serving.v1.GivenFeatures", "rows", "the party whose block it is"),
    *control("serving.v1.Declined", "reason message", "coordinator"),
    *control("party.v1.CloseSessionRequest", "session_id receipts", "the party"),
    *control(
        "aggregation.v1.Receipt",
        "party name round consent heads released releases ledger_entries ledger_head signature",
        "coordinator, all parties",
    ),
    *control("aggregation.v1.PairHead", "party head", "coordinator, all parties"),
    *control("peer.v1.Attach", "session_id", "the peer"),
    *control(
        "peer.v1.PushRequest",
        "attach extension chunk following_bytes",
        "the peer",
    ),
    *control(
        "ledger.v1.LedgerEntry",
        "sequence time kind mechanism recipients first_release releases records epsilon delta largest_count hash",
        "clients",
    ),
    *control(
        "ledger.v1.PrivacyReport",
        "mechanism pure_epsilon rdp_epsilon pld_epsilon delta largest_count budget",
        "clients",
    ),
    *control("ledger.v1.EvaluationCount", "name rows evaluations epsilon", "clients"),
    *control("run.v1.Metric", "name", "clients"),
    *control(
        "run.v1.Run",
        "run_id name algorithm state reason parties step steps metrics created changed spec_yaml attempt tags "
        "queue_position priority started_by protocol",
        "clients",
    ),
    *control(
        "run.v1.RunEvent",
        "sequence time kind message step metrics state state_change progress evaluation privacy party data_opened "
        "warning",
        "clients",
    ),
    *control("run.v1.RunTotals", "rounds bytes label_releases seconds", "clients"),
    *control("run.v1.RunStateChange", "attempt from_step reason left_out totals model_step measured", "clients"),
    *control("run.v1.RunProgress", "checkpoint measured totals", "clients"),
    *control("run.v1.RunEvaluation", "measured totals", "clients"),
    *control("run.v1.RunPrivacy", "epsilon delta budget largest_count entries head", "clients"),
    *control("run.v1.RunParty", "party change goes_on round remaining", "clients"),
    derived(
        "run.v1.RunParty.detail", "the table's columns, where it warns of them", "sentences without values", "clients"
    ),
    derived("run.v1.RunWarning.topic", "losses on noisy labels", "words without values", "clients"),
    derived("run.v1.RunWarning.finding", "losses on noisy labels", "sentences without values", "clients"),
    *control("run.v1.RunWarning", "remedy", "clients"),
    *control("run.v1.RunData", "party alignment", "clients"),
    derived("run.v1.RunData.rows", "the table's size", "a count", "clients"),
    derived("run.v1.RunData.columns", "the table's width", "a count", "clients"),
    derived("run.v1.RunData.id_sha256", "the ids of the rows", "SHA-256", "clients"),
    *control("run.v1.SpecProblem", "field line message", "clients"),
    *control("run.v1.RunForecast", "rounds sent_bytes received_bytes peer_bytes", "clients"),
    *control(
        "run.v1.PartyStatus",
        "name address reachable version problem tables latency_milliseconds clock_skew_seconds offers algorithms "
        "aggregations protocol",
        "clients",
    ),
    derived("run.v1.PartyTable.rows", "the table's size", "a count", "clients"),
    derived("run.v1.PartyTable.features", "the table's width", "a count", "clients"),
    *control("run.v1.PartyTable", "name problem notice loaded_percent", "clients"),
    *control("run.v1.CheckSpecRequest", "spec_yaml", "coordinator"),
    *control("run.v1.CheckSpecResponse", "problems forecast unforetold", "clients"),
    *control("run.v1.StartRunRequest", "request_id spec_yaml priority", "coordinator"),
    *control("run.v1.StartRunResponse", "run", "clients"),
    *control("run.v1.GetRunRequest", "run_id", "coordinator"),
    *control("run.v1.GetRunResponse", "run", "clients"),
    *control("run.v1.ListRunsRequest", "page_size page_token states algorithm name tag", "coordinator"),
    *control("run.v1.ListRunsResponse", "runs next_page_token", "clients"),
    *control("run.v1.WatchRunRequest", "run_id after_sequence", "coordinator"),
    *control("run.v1.WatchRunResponse", "event run", "clients"),
    *control("run.v1.CancelRunRequest", "run_id", "coordinator"),
    *control("run.v1.CancelRunResponse", "run", "clients"),
    *control("run.v1.ResumeRunRequest", "run_id", "coordinator"),
    *control("run.v1.ResumeRunResponse", "run", "clients"),
    *control("run.v1.DeleteRunRequest", "run_id", "coordinator"),
    *control("run.v1.TagRunRequest", "run_id add remove", "coordinator"),
    *control("run.v1.TagRunResponse", "run", "clients"),
    *control("run.v1.PruneRunsRequest", "older_than_seconds states dry_run", "coordinator"),
    *control("run.v1.PruneRunsResponse", "run_ids more", "clients"),
    *control("run.v1.PredictRequest", "run_id table", "coordinator"),
    *control("run.v1.PredictRowsRequest", "name features", "coordinator"),
    *control("run.v1.PredictRowsResponse", "run_id version", "clients"),
    *control("run.v1.DeployRequest", "run_id name table", "coordinator"),
    *control("run.v1.DeployResponse", "deployment", "clients"),
    *control("run.v1.RollBackDeploymentRequest", "name", "coordinator"),
    *control("run.v1.RollBackDeploymentResponse", "deployment", "clients"),
    *control("run.v1.UndeployRequest", "name", "coordinator"),
    *control("run.v1.ListDeploymentsResponse", "deployments", "clients"),
    *control(
        "run.v1.Deployment",
        "name version run_id table state problem earlier_versions deployed_by deployed rows sums",
        "clients",
    ),
    *control("run.v1.CallerFeatures", "party", "coordinator"),
    *control("run.v1.ListPartiesResponse", "parties version clock_seconds", "clients"),
    *control("run.v1.AlignedParty", "name table", "coordinator"),
    *control("run.v1.AlignRequest", "name parties labels duplicates", "coordinator"),
    *control("run.v1.AlignedTable", "holder table", "clients"),
    *control("run.v1.AlignResponse", "stage done total finished tables", "clients"),
    *control("run.v1.GetCoefficientsRequest", "run_id page_token", "coordinator"),
    *control("run.v1.PartyCoefficients", "party coefficients kept", "clients"),
    *control("run.v1.GetCoefficientsResponse", "parties next_page_token", "clients"),
    *control("run.v1.GetLedgerRequest", "run_id page_token", "coordinator"),
    *control("run.v1.GetLedgerResponse", "entries report broken evaluations next_page_token", "clients"),
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
        "own cluster",
        "features, weights and factors that a party with `compute` sends to a cluster of its own organisation",
        "answers come back to the party process, where the gates are; beyond loopback it asks for a token and TLS",
    ),
    Leak(
        "encoded columns",
        "how many categories a party's columns have",
        "the coordinator sees the width of a table once it is encoded; `max_categories` bounds it, a declared list of "
        "categories fixes it",
    ),
    Leak(
        "early stop",
        "when a run ends, and which of its models is the best",
        "runs end after the spec's number of steps, by a client, or by budget. With `stop` it follows from figures "
        "that are counted as releases, and noised where the labels' owner says so; by an exact loss (`target`) only "
        "where the parties hold the labels themselves, or label privacy is off",
    ),
    Leak(
        "models",
        "a party's own x_m and y_m after training",
        "stay with the party; they are post-processing of what it received. Tuned coefficients are told as far as "
        "`policy.coefficients` says: one number for a whole party by default, none of single columns",
    ),
)
