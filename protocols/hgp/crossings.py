"""What can leave in HGP: portions of Push-Sum between neighbours, and sums of measures."""

from parley.privacy.manifest import NONE_NEEDED, PUBLIC, SECURE_SUM, Entry, control, derived
from parley.protocols.decentralised.crossings import CLOCK

CROSSINGS: tuple[Entry, ...] = (
    *CLOCK,
    derived(
        "decentralised.v1.Measures.sum",
        "a party's losses, mistakes, numbers of rows, accuracy and its level, and norm of its hyper-gradient",
        SECURE_SUM,
        "coordinator: the sum over all parties",
    ),
    derived(
        "decentralised.v1.PushSumVector.z",
        "the sender's gradients and state",
        "none; a party's policy must allow hgp",
        "the neighbour",
    ),
    derived("decentralised.v1.PushSumVector.omega", PUBLIC, NONE_NEEDED, "the neighbour"),
    derived(
        "decentralised.v1.PushSumVector.total_z",
        "the sender's gradients and state",
        "none; a party's policy must allow hgp",
        "the neighbour",
    ),
    derived("decentralised.v1.PushSumVector.total_omega", PUBLIC, NONE_NEEDED, "the neighbour"),
    *control("decentralised.v1.PushSumVector", "step sequence", "the neighbour"),
    *control("peer.v1.PushRequest", "push_sum", "the neighbour"),
)
