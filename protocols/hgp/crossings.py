"""What can leave in HGP: portions of Push-Sum between neighbours, and sums of measures."""

from collections.abc import Iterator

from parley.privacy.manifest import NONE_NEEDED, PUBLIC, Entry, control, derived
from parley.protocols.decentralised.crossings import CLOCK
from parley.protocols.hgp.settings import HgpSpec
from parley.protocols.statements import PARTIES, Statement, addends, only_the_sum
from parley.spec.run import RunSpec

CROSSINGS: tuple[Entry, ...] = (
    *CLOCK,
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


def statements(spec: RunSpec) -> Iterator[Statement]:
    """What leaves in one run."""
    robust = spec.settings(HgpSpec).delivery == "robust"
    figures = "AUC and other figures of its own rows, " if spec.evaluation.averages else ""
    yield Statement(
        PARTIES,
        "portions of its model and gradients to its neighbours at each step, in the clear: no mechanism hides them",
        ("decentralised.v1.PushSumVector.total_z" if robust else "decentralised.v1.PushSumVector.z",),
    )
    yield Statement(
        PARTIES,
        f"its losses, mistakes, numbers of rows, {figures}the norm of its hyper-gradient and how far its neighbours' "
        f"estimates are from its own, {only_the_sum(spec)}",
        ("decentralised.v1.Measures.sum", *addends(spec)),
    )
