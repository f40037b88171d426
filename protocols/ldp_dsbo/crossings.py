"""What can leave in LDP-DSBO: states under Laplace noise between neighbours."""

from collections.abc import Iterator

from parley.privacy.manifest import Entry, control, derived
from parley.protocols.decentralised.crossings import CLOCK
from parley.protocols.ldp_dsbo.settings import LdpDsboSpec
from parley.protocols.statements import PARTIES, Statement
from parley.spec.run import RunSpec

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


def statements(spec: RunSpec) -> Iterator[Statement]:
    """What leaves in one run."""
    train = spec.settings(LdpDsboSpec)
    noise = f"under Laplace noise of its own: one record may cost ε = {train.epsilon:g} in the whole run, by its ledger"
    yield Statement(
        PARTIES,
        f"its model to its neighbours at each step, {'in the clear' if train.noise is None else noise}",
        tuple(f"decentralised.v1.NoisedState.{name}" for name in ("noised_x", "noised_y", "noised_z")),
    )
