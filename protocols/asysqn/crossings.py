"""What can leave in AsySQN: one entry for each field of its messages."""

from collections.abc import Iterator

from parley.privacy.manifest import LABEL_PRIVACY, SECURE_SUM, TREE_SUM, Entry, control, derived
from parley.protocols.asysqn.settings import AsysqnSpec
from parley.protocols.statements import COORDINATOR, PARTIES, Statement, addends, label_noise, only_the_sum
from parley.spec.run import RunSpec

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


def statements(spec: RunSpec) -> Iterator[Statement]:
    """What leaves in one run."""
    train = spec.settings(AsysqnSpec)
    yield Statement(
        PARTIES,
        f"its part of the scores θ of rows that are watched or trained on, {only_the_sum(spec)}",
        ("asysqn.v1.ThetaShare.sum", "asysqn.v1.Contribution.theta", *addends(spec)),
    )
    if train.is_asynchronous:
        two_tree = spec.privacy.aggregation.kind == "two_tree"
        carried = "asysqn.v1.PartialTheta.masked_theta" if two_tree else "asysqn.v1.Share.sum"
        yield Statement(
            PARTIES,
            f"its part of θ of a batch to each party that asks, {only_the_sum(spec, 'that party')}. Many sums on rows "
            "that a party knows determine the others' models",
            (carried,),
        )
    if train.labels_at == "parties":
        if not train.is_asynchronous:
            yield Statement(COORDINATOR, "the sum of θ of each batch to all parties", ("asysqn.v1.OpenedTheta.values",))
        return
    if train.is_asynchronous:
        yield Statement(
            PARTIES,
            "the sum of θ of its batch to the coordinator, which answers with slopes",
            ("coordinator.v1.SlopesQuestion.opened_theta",),
        )
    yield Statement(
        COORDINATOR,
        f"the slope of the loss at each row of a batch to the parties whose step it is. {label_noise(spec)}",
        ("asysqn.v1.Slopes.derivative",),
    )
