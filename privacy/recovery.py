"""Sums that go on without a lost party: what is asked step by step, and one party's part in it.

The protocol is `privacy.dropout`'s (after Bonawitz et al., CCS 2017, figure 4). A sum takes up to four steps, each one
round trip of the coordinator with the participants:

| step | down | up | a party is lost |
|---|---|---|---|
| key (first sum of a party, or after it sat out) | – | round key | the sum is made without it |
| shares | everyone's round keys | shares sealed for each other | new keys, and a new sum without it |
| values | shares for this party, and the instruction | masked value | its pairwise masks are taken off |
| disclosure | who answered | shares; key of the next sum | its value is in the sum; t disclosures are enough |
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from parley.numerics.arrays import Vector
from parley.privacy.dropout import Disclosure, RoundKeys, SelfMask, ShareKeeper, round_masker, seal_shares
from parley.privacy.pairwise import NotAParticipant, RoundReused, with_check
from parley.privacy.ring import Ring, RingArray
from parley.privacy.session_keys import KeyRejected
from parley.privacy.transcript import Transcript
from parley.privacy.trees import TooFewParties


class StepUnexpected(ValueError):
    """A step of a sum came out of order, or for a sum that is not open here."""


class InstructionReplaced(StepUnexpected):
    """A value is asked for by another instruction than the one that the sum's shares were sealed for."""


class RoundKeyReplaced(KeyRejected):
    """The list of round keys holds another key than the one that this party announced."""


@dataclass(frozen=True)
class AskKey:
    """Draw a self mask and a round key."""


@dataclass(frozen=True)
class AskShares:
    """Share the secrets of a sum with its participants."""

    sum_id: int
    public_keys: Mapping[int, bytes]
    """Every participant's round key."""
    instruction: bytes = b""
    """SHA-256 of the instruction that will ask for the values."""


@dataclass(frozen=True)
class AskValues:
    """Send the masked value."""

    sum_id: int
    sealed: Mapping[int, bytes]
    """What every other participant sealed for this party."""


@dataclass(frozen=True)
class AskDisclosure:
    """Send what opens the sum over the survivors."""

    sum_id: int
    survivors: frozenset[int]


RecoveryStep = AskKey | AskShares | AskValues | AskDisclosure


@dataclass(frozen=True)
class KeyOffer:
    """A party's round key for the next sum that it takes part in."""

    party: int
    public_key: bytes


@dataclass(frozen=True)
class ShareBundle:
    """A party's shares, sealed for each other participant."""

    sealed: Mapping[int, bytes]


@dataclass(frozen=True)
class Settlement:
    """A survivor's one answer about a sum, and its round key for the next."""

    disclosure: Disclosure
    next_key: bytes


@dataclass
class _OpenSum:
    keys: RoundKeys
    own: SelfMask
    keeper: ShareKeeper
    sent: bool = False


class RecoverableSums:
    """One party's sums in one session. A sum's number is used once, and a sum is disclosed for one set of survivors."""

    def __init__(
        self,
        index: int,
        session_id: str,
        names: Mapping[int, str],
        share_keys: Mapping[int, bytes],
        ring: Ring,
        needed: Callable[[int], int],
        transcript: Transcript | None = None,
    ) -> None:
        """`share_keys` are the session's pair secrets; `needed` gives the threshold for so many participants.

        Without a `transcript` the sums are bound to nothing that the parties were told.
        """
        self._transcript = transcript
        self._index, self._session_id, self._names = index, session_id, names
        self._share_keys, self._ring, self._needed = share_keys, ring, needed
        self._drawn: SelfMask | None = None
        self._open: _OpenSum | None = None
        self._last = 0

    def offer(self) -> KeyOffer:
        """Draw the secrets of the next sum; ones that were drawn before and not used are forgotten."""
        self._drawn = SelfMask.generate()
        return KeyOffer(self._index, self._drawn.round_key.public_bytes)

    def seal(self, ask: AskShares) -> ShareBundle:
        """Begin a sum: share this party's secrets of it among the participants."""
        if ask.sum_id <= self._last:
            raise RoundReused(f"sum {ask.sum_id} is not after sum {self._last}: take a new number for every sum")
        if self._drawn is None:
            raise StepUnexpected("no round key of this party is waiting for a sum: ask for one first")
        if ask.public_keys.get(self._index) != self._drawn.round_key.public_bytes:
            raise RoundKeyReplaced(f"the round key of {self._names[self._index]} is not the one that it announced")
        unknown = sorted(ask.public_keys.keys() - self._names.keys())
        if unknown:
            raise NotAParticipant(f"parties {unknown} are not in this run")
        needed = self._needed(len(ask.public_keys))
        if needed > len(ask.public_keys):
            raise TooFewParties(f"a sum over {len(ask.public_keys)} parties could not be opened: {needed} must be left")
        names = {party: self._names[party] for party in ask.public_keys}
        keys = RoundKeys(self._session_id, 0, ask.sum_id, needed, names, dict(ask.public_keys), ask.instruction)
        told = self._transcript.heads if self._transcript is not None else None
        own, sealed = seal_shares(self._index, self._drawn, keys, self._share_keys, told)
        self._open = _OpenSum(keys, self._drawn, ShareKeeper(self._index, own, keys, self._share_keys, told))
        self._last, self._drawn = ask.sum_id, None
        return ShareBundle(sealed)

    def receive(self, ask: AskValues) -> None:
        """Take everyone's shares; nothing leaves before all of them open."""
        current = self._current(ask.sum_id)
        if self._transcript is not None and self._transcript.under_way.instruction != current.keys.instruction:
            raise InstructionReplaced(
                f"sum {ask.sum_id} was agreed on for another instruction than the one that asks for its values: "
                "nothing was sent"
            )
        for owner, sealed in ask.sealed.items():
            current.keeper.accept(owner, sealed)
        current.keeper.ready()

    def mask(self, values: Vector, participants: frozenset[int]) -> RingArray:
        """The value under the masks of the open sum, once."""
        current = self._open
        if current is None or current.sent:
            raise StepUnexpected("no sum is waiting for a value of this party")
        current.keeper.ready()
        if participants != current.keys.participants:
            raise NotAParticipant(
                f"the phase is for {sorted(participants)}, the sum's keys for {sorted(current.keys.participants)}"
            )
        masker = round_masker(self._index, current.own, current.keys, self._ring)
        masked = with_check(self._ring.encode(values), self._ring)
        masker.mask_in_place(current.keys.round_id, masked, participants)
        current.sent = True
        return masked

    def settle(self, ask: AskDisclosure) -> Settlement:
        """Disclose for one set of survivors, and offer the next round key."""
        current = self._current(ask.sum_id)
        if not current.sent:
            raise StepUnexpected(f"sum {ask.sum_id} has no value of this party yet: there is nothing to open")
        disclosure = current.keeper.disclose(ask.survivors)
        return Settlement(disclosure, self.offer().public_key)

    def _current(self, sum_id: int) -> _OpenSum:
        if self._open is None or self._open.keys.round_id != sum_id:
            raise StepUnexpected(f"sum {sum_id} is not open here: its round keys come first")
        return self._open
