"""What two parties have both been told in a session, as a running SHA-256 for each pair of them.

A coordinator could tell parties different things (another θ, other rows) while their masks still cancel, and read one
party's value off the sum. So the masks between u and v are drawn under their transcript: the chain

    head_uv ← H(head_uv ‖ round ‖ H(instruction)),   from the consent of the session (`privacy.consent`),

over the instructions of the rounds that both take part in. Parties that were told different things have different heads
from then on, and no sum over both of them opens again. A pair has a chain of its own because a party that sat out a
round was told nothing; where everyone takes part in every round, all heads are the same.
"""

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from parley.privacy.session_keys import joined

_LABEL = b"parley/transcript/v1"
Heads = Mapping[int, bytes]
"""Of each other party: what it and this one have both been told."""


def digest_of(instruction: bytes, blobs: Iterable[bytes | memoryview]) -> bytes:
    """SHA-256 of an instruction and the large tensors that follow it, which are not copied."""
    whole = hashlib.sha256(len(instruction).to_bytes(8, "big"))
    whole.update(instruction)
    for blob in blobs:
        whole.update(len(blob).to_bytes(8, "big"))
        whole.update(blob)
    return whole.digest()


@dataclass(frozen=True)
class Told:
    """What this party has been told up to and with an instruction."""

    instruction: bytes
    """SHA-256 of the instruction."""
    heads: Heads
    """With those who take part in its round as the instruction leaves them."""


class Transcript:
    """One party's chains in one session."""

    def __init__(self, consent: bytes, index: int, parties: int) -> None:
        first = hashlib.sha256(joined(_LABEL, consent)).digest()
        self.heads: Heads = {party: first for party in range(parties) if party != index}
        """With each other party, as the last round that was kept leaves them."""
        self.under_way = Told(b"", self.heads)
        """What the round under way has told."""

    def read(self, number: int, instruction: bytes, participants: Collection[int] | None) -> Told:
        """Take the instruction of a round among `participants` (everyone if None); `keep` makes it count."""
        step = number.to_bytes(8, "big") + instruction
        longer = {head: hashlib.sha256(head + step).digest() for head in set(self.heads.values())}  # most often one
        heads = {
            party: longer[head] if participants is None or party in participants else head
            for party, head in self.heads.items()
        }
        self.under_way = Told(instruction, heads)
        return self.under_way

    def read_apart(self, instruction: bytes) -> Told:
        """Take an instruction that not all participants of its round get, so that no chain can hold it."""
        self.under_way = Told(instruction, self.heads)
        return self.under_way

    def keep(self) -> None:
        """The round under way is done: later ones follow it."""
        self.heads = self.under_way.heads
