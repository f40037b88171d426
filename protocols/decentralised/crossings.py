"""What can leave between the clock and the parties of a decentralised run."""

from parley.privacy.manifest import SECURE_SUM, Entry, control, derived

CLOCK: tuple[Entry, ...] = (
    # Of runs that evaluate; those under local privacy never do.
    derived(
        "decentralised.v1.Measures.sum",
        "a party's losses, mistakes, numbers of rows, accuracy and its level, and norm of its hyper-gradient",
        SECURE_SUM,
        "coordinator: the sum over all parties",
    ),
    *control("decentralised.v1.Instruction", "round phase k first last", "all parties"),
    *control(
        "decentralised.v1.Contribution", "round measures acknowledgement party peer_messages peer_bytes", "coordinator"
    ),
    *control("party.v1.ExchangeRequest", "decentralised", "all parties"),
    *control("party.v1.ExchangeResponse", "decentralised", "coordinator"),
)
