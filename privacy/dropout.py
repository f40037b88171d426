"""Dropout recovery for pairwise masks: self masks and shared round keys.

After Bonawitz et al., CCS 2017, section 4 and figure 4. For each round, party u draws a self-mask seed b_u and a round
key pair; it gives every participant one Shamir share of b_u and one of the round's private key, encrypted to that
participant. Once the coordinator has the masked vectors, the survivors give it, for each peer, either the share of
b_u (u answered: the self mask comes off) or the share of u's round key (u dropped: its pairwise masks come off), never
both.

# differs from the paper: the encryption key pair of a party lives a session; only the mask key pair, which can be
# reconstructed, lives one round. So a key that is opened for one round opens no other.
# differs from the paper: a round key is not signed. The shares are sealed under secrets from signed session keys and
# bound to the sender's list of round keys, so they open only for who has the same list: a coordinator that replaces a
# key, or names different participants to two parties, is found out before a masked value leaves. They are bound to
# what sender and recipient were told as well (`privacy.transcript`), the instruction of this sum included: its digest
# comes with the round keys, and a value is sent for that instruction only.

Each kind needs t shares. If 2t > n + c, then c colluding parties, who give both kinds, and a coordinator that names
other survivors to every honest one still cannot collect t of both for anybody; `check_threshold` asks for this.
"""

import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from parley.privacy.mask_stream import KEY_BYTES, MaskStream, add_round_mask
from parley.privacy.pairwise import SMALLEST_SUM, NotAParticipant, PairwiseMasker
from parley.privacy.ring import Ring, RingArray
from parley.privacy.session_keys import SessionKey, pair_secret
from parley.privacy.shamir import SHARE_BYTES, Share, SharesInconsistent, ThresholdImpossible, combine, split
from parley.privacy.trees import TooFewParties

_NONCE_BYTES, _TAG_BYTES = 12, 16
SEALED_BYTES = _NONCE_BYTES + 2 * SHARE_BYTES + _TAG_BYTES
"""Length of a sealed pair of shares."""


class BothSharesAsked(PermissionError):
    """A party was asked for a second, different answer about the same round.

    Answering would give both kinds of share for some peer, and both kinds open its value.
    """


class SharesNotForUs(ValueError):
    """Encrypted shares do not open: wrong key, round, sender or recipient."""


class SharesMissing(ValueError):
    """A participant's shares have not arrived, so it could not be recovered."""


@dataclass(frozen=True)
class SelfMask:
    """What a party draws for one round with recovery."""

    seed: bytes = field(repr=False)
    """b_u, 32 bytes."""
    round_key: SessionKey
    """The pair from which this round's pairwise masks come."""

    @classmethod
    def generate(cls) -> "SelfMask":
        """Fresh, from the operating system's randomness."""
        return cls(os.urandom(KEY_BYTES), SessionKey.generate())


@dataclass(frozen=True)
class SharePair:
    """One participant's shares of another's two secrets."""

    seed: Share
    key: Share


@dataclass(frozen=True)
class Disclosure:
    """What a survivor sends to the coordinator: for each peer one kind of share and not the other."""

    holder: int
    seed_shares: Mapping[int, Share]
    """For those who answered."""
    key_shares: Mapping[int, Share]
    """For those who dropped out."""


@dataclass(frozen=True)
class RoundKeys:
    """The public facts of one round, as the coordinator and every participant know them."""

    run_id: str
    attempt: int
    round_id: int
    threshold: int
    """t: shares needed to recover a secret."""
    names: Mapping[int, str]
    """Participants: index to certified name."""
    public_keys: Mapping[int, bytes]
    """Each participant's round key, verified."""
    instruction: bytes = b""
    """SHA-256 of the instruction that the sum's values will answer."""

    def __post_init__(self) -> None:
        if self.names.keys() != self.public_keys.keys() or len(set(self.names.values())) != len(self.names):
            raise NotAParticipant("every participant of a round needs a name of its own and a round key")

    @property
    def participants(self) -> frozenset[int]:
        """Indices of those who take part."""
        return frozenset(self.names)

    @property
    def digest(self) -> bytes:
        """What two parties must agree on before either takes the other's shares."""
        members = (f"{party} {self.names[party]} {self.public_keys[party].hex()}" for party in sorted(self.names))
        return hashlib.sha256("\n".join([f"{self.threshold} {self.instruction.hex()}", *members]).encode()).digest()

    def mask_secret(self, owner: int, key: SessionKey, peer: int) -> bytes:
        """s_uv of this round."""
        return pair_secret(
            key,
            self.names[owner],
            self.names[peer],
            self.public_keys[peer],
            run_id=self.run_id,
            attempt=self.attempt,
            purpose=f"mask of round {self.round_id}",
        )


def check_threshold(threshold: int, parties: int, colluders: int) -> None:
    """Refuse a threshold with which the coordinator and `colluders` parties could collect both kinds of share."""
    if not (parties + colluders) / 2 < threshold <= parties:
        raise ThresholdImpossible(
            f"a threshold of {threshold} of {parties} does not withstand {colluders} colluding parties: "
            f"it must be above {(parties + colluders) / 2:g} and at most {parties}"
        )


def seal_shares(
    owner: int,
    own: SelfMask,
    keys: RoundKeys,
    share_keys: Mapping[int, bytes],
    told: Mapping[int, bytes] | None = None,
    *,
    colluders: int = 1,
) -> tuple[SharePair, dict[int, bytes]]:
    """Run by u: its own pair of shares, and an encrypted pair for each other participant.

    `share_keys` are the session's pair secrets for the purpose "shares"; `told` is what u and each other one have both
    been told before this sum; `colluders` is how many participants may be in league with the coordinator.
    """
    check_threshold(keys.threshold, len(keys.participants), colluders)
    points = [party + 1 for party in keys.participants]
    of_seed = split(own.seed, keys.threshold, points)
    of_key = split(own.round_key.private_bytes, keys.threshold, points)
    sealed = {}
    for peer in sorted(keys.participants - {owner}):
        nonce = os.urandom(_NONCE_BYTES)
        content = of_seed[peer + 1].to_bytes() + of_key[peer + 1].to_bytes()
        sealed[peer] = nonce + AESGCM(share_keys[peer]).encrypt(nonce, content, _context(keys, owner, peer, told))
    return SharePair(of_seed[owner + 1], of_key[owner + 1]), sealed


def round_masker(owner: int, own: SelfMask, keys: RoundKeys, ring: Ring) -> PairwiseMasker:
    """Run by u: the masker of this one round, self mask included."""
    secrets = {peer: keys.mask_secret(owner, own.round_key, peer) for peer in keys.participants - {owner}}
    return PairwiseMasker(
        owner,
        secrets,
        ring,
        minimum_parties=max(keys.threshold, SMALLEST_SUM),
        self_mask=own.seed,
        last_round=keys.round_id - 1,
    )


class ShareKeeper:
    """One participant's custody of everybody's shares for one round, and its single answer about them."""

    def __init__(
        self,
        index: int,
        own: SharePair,
        keys: RoundKeys,
        share_keys: Mapping[int, bytes],
        told: Mapping[int, bytes] | None = None,
    ) -> None:
        self._index, self._told = index, told
        self._keys = keys
        self._share_keys = share_keys
        self._held = {index: own}
        self._answer: tuple[frozenset[int], Disclosure] | None = None

    def accept(self, owner: int, sealed: bytes) -> None:
        """Open and keep the shares that `owner` sent to this party."""
        if owner not in self._keys.participants or owner == self._index:
            raise NotAParticipant(f"party {owner} has no shares to send to party {self._index} in this round")
        nonce, ciphertext = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
        context = _context(self._keys, owner, self._index, self._told)
        try:
            content = AESGCM(self._share_keys[owner]).decrypt(nonce, ciphertext, context)
        except (InvalidTag, ValueError):
            raise SharesNotForUs(
                f"the shares of party {owner} for party {self._index} in round {self._keys.round_id} do not open: "
                "wrong pair secret, made for another round or party, somebody on the way has replaced a round key, or "
                "the two were told different things"
            ) from None
        if len(content) != 2 * SHARE_BYTES:
            raise SharesNotForUs(f"the shares of party {owner} have {len(content)} bytes, not {2 * SHARE_BYTES}")
        point = self._index + 1
        self._held[owner] = SharePair(
            Share.from_bytes(point, content[:SHARE_BYTES]), Share.from_bytes(point, content[SHARE_BYTES:])
        )

    def ready(self) -> None:
        """Refuse to go on (to send a masked vector) before everybody's shares are here."""
        missing = sorted(self._keys.participants - self._held.keys())
        if missing:
            raise SharesMissing(f"no shares from parties {missing} yet: wait, or start the round without them")

    def disclose(self, survivors: Iterable[int]) -> Disclosure:
        """The answer for this set of survivors; a repeated question gets the same answer, another one a refusal."""
        answered = frozenset(survivors)
        self.ready()
        if self._answer is not None:
            if self._answer[0] != answered:
                raise BothSharesAsked(
                    f"round {self._keys.round_id} was settled with survivors {sorted(self._answer[0])}, now "
                    f"{sorted(answered)} is asked for: the difference would open a value; end the round"
                )
            return self._answer[1]
        if not answered <= self._keys.participants or self._index not in answered:
            raise NotAParticipant(
                f"survivors {sorted(answered)} must be participants and include party {self._index}, which answered"
            )
        _check_enough(answered, self._keys.threshold)
        disclosure = Disclosure(
            self._index,
            {party: self._held[party].seed for party in sorted(answered)},
            {party: self._held[party].key for party in sorted(self._keys.participants - answered)},
        )
        self._answer = (answered, disclosure)
        return disclosure


def unmask(
    masked: Mapping[int, RingArray], disclosures: Iterable[Disclosure], keys: RoundKeys, ring: Ring
) -> RingArray:
    """Run by the coordinator: the ring sum of the survivors' values, from their y_u and at least t disclosures."""
    survivors = frozenset(masked)
    if not survivors <= keys.participants:
        raise NotAParticipant(f"answers from {sorted(survivors - keys.participants)}, who are not in this round")
    _check_enough(survivors, keys.threshold)
    by_holder = {disclosure.holder: disclosure for disclosure in disclosures}
    answers = iter(masked.values())
    total = ring.checked(next(answers)).copy()
    for answer in answers:
        total += ring.checked(answer)
    for party in sorted(survivors):
        seed = _recover(party, {h: d.seed_shares for h, d in by_holder.items()}, keys.threshold)
        MaskStream(seed).add(total, keys.round_id, ring, subtract=True)
    for dropped in sorted(keys.participants - survivors):
        key = SessionKey(_recover(dropped, {h: d.key_shares for h, d in by_holder.items()}, keys.threshold))
        if key.public_bytes != keys.public_keys[dropped]:
            raise SharesInconsistent(f"the shares of party {dropped}'s key do not give its key: some share is wrong")
        for survivor in sorted(survivors):
            # y_survivor holds +PRG(s) if dropped > survivor, −PRG(s) otherwise: take it out again
            secret = keys.mask_secret(dropped, key, survivor)
            add_round_mask(total, secret, keys.round_id, b"", ring, subtract=dropped > survivor)
    return total


def _recover(party: int, shares_by_holder: Mapping[int, Mapping[int, Share]], threshold: int) -> bytes:
    shares = {h + 1: shares[party] for h, shares in shares_by_holder.items() if party in shares}
    if any(share.point != point for point, share in shares.items()):
        raise SharesInconsistent(f"a holder sent somebody else's share of party {party}'s secret")
    return combine(shares, threshold)


def _check_enough(survivors: frozenset[int], threshold: int) -> None:
    if len(survivors) < max(threshold, SMALLEST_SUM):
        raise TooFewParties(
            f"{len(survivors)} survivors are fewer than the threshold {max(threshold, SMALLEST_SUM)}: end the round"
        )


def _context(keys: RoundKeys, owner: int, recipient: int, told: Mapping[int, bytes] | None) -> bytes:
    """Authenticated with the shares: what they are for, and what both ends were told (each knows it by the other)."""
    both = told or {}
    what = f"parley/shares/v1 {keys.attempt} {keys.round_id} {owner}>{recipient} {keys.run_id} "
    return what.encode() + keys.digest + both.get(owner, both.get(recipient, b""))
