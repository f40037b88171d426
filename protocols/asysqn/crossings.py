"""What can leave in AsySQN: one entry for each field of its messages."""

from parley.privacy.manifest import LABEL_PRIVACY, SECURE_SUM, TREE_SUM, Entry, control, derived

CROSSINGS: tuple[Entry, ...] = (
    derived(
        "asysqn.v1.ThetaShare.sum",
        "features and w_ℓ of a party",
        SECURE_SUM,
        "coordinator: the sum of θ over all parties",
    ),
    derived(
        "asysqn.v1.Share.sum",
        "features and w_ℓ of a party",
        SECURE_SUM,
        "the party that asked: the sum of θ over all parties. Many sums on known rows determine w_ℓ by linear algebra",
    ),
    derived("asysqn.v1.PartialTheta.masked_theta", "features and w_ℓ of a subtree", TREE_SUM, "nobody"),
    derived(
        "asysqn.v1.OpenedTheta.values",
        "features and models of all parties",
        "a secure sum; only where the parties hold the labels themselves",
        "all parties",
    ),
    derived("asysqn.v1.Slopes.derivative", "labels and the sum of θ", LABEL_PRIVACY, "the parties whose step it is"),
    derived(
        "coordinator.v1.SlopesQuestion.opened_theta",
        "features and models of all parties",
        "a secure sum over all parties",
        "coordinator and the party that asked",
    ),
    *control("asysqn.v1.Batch", "k t", "all parties"),
    *control("asysqn.v1.ThetaRequest", "round batch all_rows", "all parties"),
    *control("asysqn.v1.PartialTheta", "requester share", "the parent in the tree, or the party that asked"),
    *control("asysqn.v1.Share", "round", "the party that asked"),
    *control(
        "asysqn.v1.Instruction",
        "round opened slopes theta_forward start report look halt checkpoint finish",
        "all parties",
    ),
    *control("asysqn.v1.ThetaForward", "batch all_rows", "all parties"),
    *control("asysqn.v1.Look", "rows first count", "all parties"),
    *control("asysqn.v1.Checkpoint", "k", "all parties"),
    derived(
        "asysqn.v1.Contribution.theta",
        "features and w_ℓ of a party",
        SECURE_SUM,
        "coordinator: the sum over all parties",
    ),
    *control("asysqn.v1.Contribution", "round acknowledgement progress", "coordinator"),
    *control(
        "asysqn.v1.Progress",
        "party updates calls peer_bytes busy_seconds loop_seconds staleness updates_alone",
        "coordinator",
    ),
    *control("coordinator.v1.SlopesQuestion", "session_id batch all_rows", "coordinator"),
    *control("party.v1.ExchangeRequest", "asysqn", "all parties"),
    *control("party.v1.ExchangeResponse", "asysqn", "coordinator"),
    *control("peer.v1.PushRequest", "theta_request partial_theta", "the peer"),
)
