"""What can leave between the clock and the parties of a decentralised run."""

from parley.privacy.manifest import Entry, control

CLOCK: tuple[Entry, ...] = (
    *control("decentralised.v1.Instruction", "round phase k first last", "all parties"),
    *control(
        "decentralised.v1.Contribution", "round measures acknowledgement party peer_messages peer_bytes", "coordinator"
    ),
    *control("party.v1.ExchangeRequest", "decentralised", "all parties"),
    *control("party.v1.ExchangeResponse", "decentralised", "coordinator"),
)
