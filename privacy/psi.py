"""Private set intersection among a leader and any number of holders: all learn the intersection, nobody more.

The construction of V. Kolesnikov, N. Matania, B. Pinkas, M. Rosulek, N. Trieu, "Practical Multi-party Private Set
Intersection from Symmetric-Key Techniques" (CCS 2017), with its oblivious pseudo-random function from powers of points
(S. Jarecki, X. Liu, "Fast Secure Computation of Set Intersection", SCN 2010) and its tables from PaXoS.

| symbol | code | held by | leaves? |
|---|---|---|---|
| X_0, X_i | `ids` | leader; holder i | never |
| r | `LeaderKeys.blinding` | leader | never |
| k_i | `HolderKeys.scalar` | holder i | never |
| H(x)^r | `Leader.blinded` | leader → every holder | yes, in an order that says nothing |
| H(x)^{r·k_i} | `Holder.shuffled` | holder i → leader | yes, in the common shuffled order π |
| F_i(x) = H(x)^{k_i} | `Leader.unblinded` | leader for x in X_0; holder i for y in X_i | never |
| s_i(y) | `shares` | holder i | only inside its table, under F_i(y) |
| T_i | `Holder.table` | holder i → leader | yes: random but for those who have F_i(y) |
| π | `permutation` | holders together; each has one share | its share, once the intersection is large enough |

1. The leader blinds its ids. Holders raise them to k_i and return them in the order π, which is drawn from a share
   of every holder and unknown to the leader. The leader takes r away: it has F_i of its own ids, and of no others,
   but not which is which.
2. Holder i makes a table that maps F_i(y) to s_i(y). The s_i are pseudo-random, from keys that pairs of holders agree
   on, such that Σ_i s_i(y) = 0 (exclusive or); for any other key the table gives noise.
3. The leader adds up what the tables say at its ids: 0 if all holders have the id, else random. It learns how many
   ids are common, and tells each holder a tag of each, which the holder finds among the tags of its own.
4. Each holder now knows the intersection, checks that it is no smaller than its policy asks for, and gives up its
   share of π. With all shares the leader knows which of its own ids are common.

**Who learns what**, as long as everyone follows the protocol: every organisation which of its own ids all the others
have; the leader the size of every set; holders the size of the leader's. Not: which ids two of them share, or how
many; anything about ids outside the intersection. A leader that colludes with some holders learns what the
intersection of the others' sets with theirs is, which it could also get by using the same ids in both roles.
This rests on decisional Diffie–Hellman in Curve25519 and on hashes as random oracles: for whoever lacks k, H(x)^k is a
random point, also for an x that they know. Two sums agree by accident with a chance of |X_0| / 2^128.

**An interruption** (`privacy.psi_files`) changes nothing of this. A holder keeps k_i, its share, its table and the
powers that it has computed, and takes each place of the leader's list once; what it is sent again must be what it was
sent before (`services.party.alignment`). So what leaves is, byte for byte, part of what one alignment without a break
sends.

Whoever does not follow the protocol can ask about ids that they do not have; no protocol of this kind prevents that. A
party's policy bounds it (`parley.services.party.config.AlignmentPolicy`).
"""

import hashlib
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from numpy.typing import NDArray

from parley.privacy.psi_curve import POINT_BYTES, Blinding, fresh_blinding, fresh_scalar
from parley.privacy.psi_files import RecordFile, Unfinished
from parley.privacy.psi_table import (
    PAD,
    SALT_BYTES,
    TAG,
    VALUE_BYTES,
    Keys,
    TableUnsolvable,
    Words,
    build,
    fresh_salt,
    look_up,
    slots_for,
    words_of,
)
from parley.privacy.psi_workers import Workers
from parley.tables.id_lists import IdList

SHARE_BYTES, POWERS = 32, "powers"
PART = 1 << 14
"""Points or slots that leave at once."""
_HASHED_AT_ONCE = 1 << 16
_POINTS_AT_ONCE = 1 << 17
"""Own ids that are raised before they are written down."""


class PsiError(ValueError):
    """A message of the protocol that cannot be right."""


@dataclass(frozen=True)
class Points:
    """Ids under a secret power, `POINT_BYTES` each."""

    data: bytes = field(repr=False)

    def __len__(self) -> int:
        return len(self.data) // POINT_BYTES

    def after(self, count: int) -> "Points":
        """All but the first ones."""
        return Points(self.data[POINT_BYTES * count :])


@dataclass(frozen=True)
class HiddenTable:
    """A holder's table: random to whoever does not have F_i of its keys."""

    salt: bytes
    slots: bytes = field(repr=False)


@dataclass(frozen=True)
class Tags:
    """Ids of the intersection as one holder alone can read them, `VALUE_BYTES` each."""

    data: bytes = field(repr=False)

    def __len__(self) -> int:
        return len(self.data) // VALUE_BYTES


@dataclass(frozen=True)
class ShuffleShare:
    """A holder's share of π, for the leader once the holder has seen the intersection."""

    data: bytes = field(repr=False)


@dataclass(frozen=True)
class SealedShares:
    """A holder's share of π, for each other holder under a key that the two agreed on; empty at its own place."""

    data: tuple[bytes, ...] = field(repr=False)


@dataclass(frozen=True)
class HolderKeys:
    """What a holder draws for one alignment."""

    scalar: bytes = field(repr=False)
    """k_i."""
    share: bytes = field(repr=False)
    """Of π."""

    @classmethod
    def fresh(cls) -> "HolderKeys":
        """From the operating system's randomness."""
        return cls(fresh_scalar(), secrets.token_bytes(SHARE_BYTES))


class Holder:
    """One holder's side. `secrets_with` are keys agreed with each other holder, by index.

    What it computes it keeps in `kept`, and goes on from what it finds there.
    """

    def __init__(
        self,
        ids: IdList,
        index: int,
        secrets_with: Mapping[int, bytes],
        context: bytes,
        keys: HolderKeys,
        kept: Unfinished,
    ) -> None:
        self._ids, self._index, self._context, self._keys = ids, index, context, keys
        self._pair_keys = {other: _derived(secret, b"share") for other, secret in secrets_with.items()}
        self._seal_keys = {other: _derived(secret, b"seal") for other, secret in secrets_with.items()}
        self._shares: dict[int, bytes] = {index: keys.share}
        self._points = kept.records("own-points", POINT_BYTES)
        self._tags = kept.records("tags", VALUE_BYTES)
        self._slots = kept.records("slots", VALUE_BYTES)
        self._salt = kept.records("salt", SALT_BYTES)
        self.powers = kept.records(POWERS, POINT_BYTES)
        """The leader's points to the power of k_i, as far as they have come. They leave in the order π only."""

    def sealed_shares(self) -> SealedShares:
        """This holder's share of π for every other holder, relayed by the leader, who cannot open it."""
        nonce, count = self._index.to_bytes(12, "big"), len(self._seal_keys) + 1
        sealed = (
            ChaCha20Poly1305(self._seal_keys[other]).encrypt(nonce, self._keys.share, self._context)
            if other != self._index
            else b""
            for other in range(count)
        )
        return SealedShares(tuple(sealed))

    def open_shares(self, sealed: Sequence[bytes]) -> None:
        """Take the other holders' shares of π, in the order of holders."""
        if len(sealed) != len(self._seal_keys) + 1:
            raise PsiError(f"{len(sealed)} shares of the shuffle came for {len(self._seal_keys) + 1} holders")
        for other, key in self._seal_keys.items():
            try:
                share = ChaCha20Poly1305(key).decrypt(other.to_bytes(12, "big"), sealed[other], self._context)
            except InvalidTag:
                raise PsiError(f"the share of holder {other} was changed on its way") from None
            self._shares[other] = share

    def make_table(self, workers: Workers) -> None:
        """T_i, unless it was made before."""
        if len(self._slots):
            return
        for first in range(len(self._points), len(self._ids), _POINTS_AT_ONCE):
            some = self._ids[first : first + _POINTS_AT_ONCE]
            self._points.append(workers.hashed_power(some, self._context, self._keys.scalar))
        while True:
            for file in (self._salt, self._tags):
                file.path.unlink(missing_ok=True)
            salt = fresh_salt()
            try:
                table = build(self._keys_under(salt))
            except TableUnsolvable:
                continue
            break
        self._salt.append(salt)
        # Whole or not at all: a table that was cut short would not be gone on with.
        scratch = RecordFile(self._slots.path.with_suffix(".partial"), VALUE_BYTES)
        scratch.path.unlink(missing_ok=True)
        scratch.append(table.astype("<u8", copy=False).data, durable=True)
        scratch.path.replace(self._slots.path)

    def _keys_under(self, salt: bytes) -> Keys:
        """Every id with its share, under F_i; their tags are kept."""
        keys, pair_keys = Keys(len(self._ids)), list(self._pair_keys.values())
        for first in range(0, len(keys), _HASHED_AT_ONCE):
            some = self._ids[first : first + _HASHED_AT_ONCE]
            words = words_of(self._points.read(first, first + len(some)), salt)
            self._tags.append(words[:, TAG].tobytes())
            keys.put(first, words, shares_of(some, pair_keys, self._context) ^ words[:, PAD])
        return keys

    def table(self, first: int = 0) -> Iterator[HiddenTable]:
        """Parts of T_i, from a slot on."""
        salt = self._salt.read(0, 1)
        for start in range(first, len(self._slots), PART):
            yield HiddenTable(salt, self._slots.read(start, start + PART))

    def take(self, powers: bytes) -> None:
        """Keep some of the leader's points under k_i: durably, so that none is ever taken twice."""
        self.powers.append(powers, durable=True)

    def power(self, blinded: bytes, workers: Workers) -> bytes:
        """Some of the leader's points to the power of k_i."""
        return workers.power(blinded, self._keys.scalar)

    def shuffled(self, first: int = 0) -> Iterator[Points]:
        """All of the leader's points to the power of k_i, in the order π, from a place on."""
        points = self.powers.mapped()
        order = permutation([self._shares[holder] for holder in range(len(self._seal_keys) + 1)], len(points))
        for start in range(first, len(points), PART):
            yield Points(points[order[start : start + PART]].tobytes())

    def common(self, tags: bytes | bytearray) -> IdList:
        """The ids of the intersection.

        Raises:
            PsiError: if a tag is of no id of this holder, or comes twice.
        """
        own, asked = self._tags.mapped("<u8"), np.frombuffer(tags, dtype="<u8").reshape(-1, 2)
        order = np.argsort(own[:, 0])
        firsts = own[:, 0][order]
        rows = np.full(len(asked), -1, dtype=np.int64)
        for start in range(0, len(asked), _HASHED_AT_ONCE):
            some = slice(start, start + _HASHED_AT_ONCE)
            place = np.searchsorted(firsts, asked[some, 0])
            for after in (0, 1):  # two of ten million tags share a first half with a chance of one in 370 000
                row = order[np.minimum(place + after, len(order) - 1)]
                rows[some] = np.where((own[row] == asked[some]).all(axis=1), row, rows[some])
        if (rows < 0).any() or (np.bincount(rows, minlength=1) > 1).any():
            raise PsiError("the leader names ids that are not in this table: one of the two sides is at fault")
        return self._ids.take(rows)

    def share(self) -> ShuffleShare:
        """This holder's share of π."""
        return ShuffleShare(self._keys.share)


@dataclass(frozen=True)
class LeaderKeys:
    """What the leader draws for one alignment."""

    blinding: Blinding
    order: bytes = field(repr=False)
    """Key of the order of its ids, so that places say nothing."""

    @classmethod
    def fresh(cls) -> "LeaderKeys":
        """From the operating system's randomness."""
        return cls(fresh_blinding(), secrets.token_bytes(SHARE_BYTES))


def evaluated_of(kept: Unfinished, holder: int) -> RecordFile:
    """Where a leader keeps what a holder has evaluated."""
    return kept.records(f"evaluated-{holder}", POINT_BYTES)


def slots_of(kept: Unfinished, holder: int) -> RecordFile:
    """Where a leader keeps a holder's table."""
    return kept.records(f"slots-{holder}", VALUE_BYTES)


class Leader:
    """The leader's side. What comes from each holder it keeps in `kept`, and goes on from what it finds there."""

    def __init__(self, ids: IdList, context: bytes, keys: LeaderKeys, kept: Unfinished) -> None:
        self._ids = ids.take(permutation([keys.order], len(ids)))
        self._context, self._blinding, self._kept = context, keys.blinding, kept
        self._common: NDArray[np.int64] = np.empty(0, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._ids)

    def evaluated(self, holder: int) -> RecordFile:
        """F_i of the leader's ids in the order π, as far as they have come."""
        return evaluated_of(self._kept, holder)

    def slots(self, holder: int) -> RecordFile:
        """T_i, as far as it has come."""
        return slots_of(self._kept, holder)

    def _tags(self, holder: int) -> RecordFile:
        return self._kept.records(f"tags-{holder}", VALUE_BYTES)

    def blinded(self, workers: Workers, first: int, last: int) -> Points:
        """H(x)^r of some of the ids."""
        return Points(workers.hashed_power(self._ids[first:last], self._context, self._blinding.scalar))

    def unblinded(self, powers: bytes, workers: Workers) -> bytes:
        """F_i of some of the leader's ids, in the order π."""
        return workers.power(powers, self._blinding.inverse)

    def sums(self, holder: int, salt: bytes, keys: int) -> Words:
        """What one holder's table, made for `keys` ids, adds to the sum of every id."""
        evaluated, slots, tags = self.evaluated(holder), self.slots(holder), self._tags(holder)
        if len(evaluated) != len(self._ids):
            raise PsiError(f"{len(evaluated)} points came back for {len(self._ids)}")
        if len(salt) != SALT_BYTES or len(slots) != slots_for(keys):
            raise PsiError(f"a table of {len(slots)} slots came; {keys} ids need {slots_for(keys)}")
        table, found = slots.mapped("<u8"), np.empty((len(self._ids), 2), dtype="<u8")
        tags.path.unlink(missing_ok=True)
        for first in range(0, len(self._ids), _HASHED_AT_ONCE):
            words = words_of(evaluated.read(first, first + _HASHED_AT_ONCE), salt)
            tags.append(words[:, TAG].tobytes())
            found[first : first + len(words)] = look_up(words, table, keys) ^ words[:, PAD]
        return found

    def match(self, sums: Iterable[Words]) -> int:
        """Find the intersection, and say how large it is."""
        total = np.zeros((len(self._ids), 2), dtype="<u8")
        for each in sums:
            total ^= each
        self._common = np.flatnonzero(~total.any(axis=1))
        return len(self._common)

    def matches(self, holder: int) -> Iterator[Tags]:
        """The intersection as one holder alone can read it, in parts."""
        tags = self._tags(holder).mapped()
        for first in range(0, max(1, len(self._common)), 2 * PART):  # one that is empty, if nothing is common
            yield Tags(tags[self._common[first : first + 2 * PART]].tobytes())

    def common(self, shares: Sequence[bytes]) -> IdList:
        """The ids of the intersection, once every holder has given up its share of π."""
        if any(len(share) != SHARE_BYTES for share in shares):
            raise PsiError(f"a share of the shuffle has {SHARE_BYTES} bytes")
        order = permutation(shares, len(self._ids))
        return self._ids.take(order[self._common])


def shares_of(ids: Sequence[str], pair_keys: Sequence[bytes], context: bytes) -> Words:
    """s_i(y): pseudo-random, and 0 in the sum over all holders, since each pair's part is in it twice."""
    total = np.zeros((len(ids), 2), dtype=np.uint64)
    for key in pair_keys:
        hashes = (
            hashlib.blake2b(identity.encode(), digest_size=VALUE_BYTES, key=key, salt=context[:16]).digest()
            for identity in ids
        )
        total ^= np.frombuffer(b"".join(hashes), dtype="<u8").reshape(-1, 2)
    return total


def permutation(shares: Sequence[bytes], count: int) -> NDArray[np.int64]:
    """π: uniform to whoever lacks one of the shares."""
    key = hashlib.sha256(b"parley/psi/shuffle/v1" + b"".join(shares)).digest()
    stream, cipher = np.empty(count, dtype="<u8"), Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor()
    for first in range(0, count, _HASHED_AT_ONCE):
        part = stream[first : first + _HASHED_AT_ONCE]
        part[:] = np.frombuffer(cipher.update(bytes(part.nbytes)), dtype="<u8")
    return np.argsort(stream, kind="stable")


def _derived(secret: bytes, purpose: bytes) -> bytes:
    return hashlib.blake2b(purpose, key=secret, digest_size=32).digest()
