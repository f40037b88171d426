"""What can leave in LDP-DSBO: states under Laplace noise between neighbours."""

from parley.privacy.manifest import Entry, control, derived
from parley.protocols.decentralised.crossings import CLOCK

CROSSINGS: tuple[Entry, ...] = (
    *CLOCK,
    derived(
        "decentralised.v1.NoisedState.noised_x",
        "the sender's records",
        "Laplace noise at the sender, in its ledger",
        "the neighbours",
    ),
    derived(
        "decentralised.v1.NoisedState.noised_y",
        "the sender's records",
        "Laplace noise at the sender, in its ledger",
        "the neighbours",
    ),
    derived(
        "decentralised.v1.NoisedState.noised_z",
        "the sender's records",
        "Laplace noise at the sender, in its ledger",
        "the neighbours",
    ),
    *control("decentralised.v1.NoisedState", "step", "the neighbours"),
    *control("peer.v1.PushRequest", "noised_state", "the neighbours"),
)
