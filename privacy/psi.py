"""Private set intersection among a leader and any number of holders: all learn the intersection, nobody more.

The construction of V. Kolesnikov, N. Matania, B. Pinkas, M. Rosulek, N. Trieu, "Practical Multi-party Private Set
Intersection from Symmetric-Key Techniques" (CCS 2017), with its oblivious pseudo-random function from powers of points
(S. Jarecki, X. Liu, "Fast Secure Computation of Set Intersection", SCN 2010) and its tables from PaXoS.

| symbol | code | held by | leaves? |
|---|---|---|---|
| X_0, X_i | `ids` | leader; holder i | never |
| r | `Leader.blinding` | leader | never |
| k_i | `Holder.scalar` | holder i | never |
| H(x)^r | `Leader.blinded` | leader → every holder | yes, in an order that says nothing |
| H(x)^{r·k_i} | `Holder.evaluated` | holder i → leader | yes, in the common shuffled order π |
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

Whoever does not follow the protocol can ask about ids that they do not have; no protocol of this kind prevents that. A
party's policy bounds it (`parley.services.party.config.AlignmentPolicy`).
"""

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from numpy.typing import NDArray

from parley.privacy.psi_curve import POINT_BYTES, fresh_blinding, fresh_scalar
from parley.privacy.psi_table import (
    PAD,
    SALT_BYTES,
    TAG,
    VALUE_BYTES,
    TableUnsolvable,
    Words,
    build,
    fresh_salt,
    look_up,
    slots_for,
    words_of,
)
from parley.privacy.psi_workers import Workers

SHARE_BYTES = 32
_HASHED_AT_ONCE = 1 << 16
_TAG_TYPE = np.dtype([("first", ">u8"), ("second", ">u8")])
"""A tag as numpy compares and sorts it."""


class PsiError(ValueError):
    """A message of the protocol that cannot be right."""


@dataclass(frozen=True)
class Points:
    """Ids under a secret power, `POINT_BYTES` each."""

    data: bytes = field(repr=False)

    def __len__(self) -> int:
        return len(self.data) // POINT_BYTES


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


class Holder:
    """One holder's side. `secrets_with` are keys agreed with each other holder, by index."""

    def __init__(self, ids: Sequence[str], index: int, secrets_with: Mapping[int, bytes], context: bytes) -> None:
        self._ids, self._index, self._context = list(ids), index, context
        self._pair_keys = {other: _derived(secret, b"share") for other, secret in secrets_with.items()}
        self._seal_keys = {other: _derived(secret, b"seal") for other, secret in secrets_with.items()}
        self._scalar, self._share = fresh_scalar(), secrets.token_bytes(SHARE_BYTES)
        self._shares: dict[int, bytes] = {index: self._share}
        self._tags: NDArray[np.void] = np.empty(0, dtype=_TAG_TYPE)
        self._order: NDArray[np.intp] = np.empty(0, dtype=np.intp)
        """The ids in the order of their tags."""

    def sealed_shares(self) -> SealedShares:
        """This holder's share of π for every other holder, relayed by the leader, who cannot open it."""
        nonce, count = self._index.to_bytes(12, "big"), len(self._seal_keys) + 1
        sealed = (
            ChaCha20Poly1305(self._seal_keys[other]).encrypt(nonce, self._share, self._context)
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

    def table(self, workers: Workers) -> HiddenTable:
        """T_i: what the leader needs to see which of its ids everyone has."""
        points = workers.hashed_power(self._ids, self._context, self._scalar)
        shares = shares_of(self._ids, list(self._pair_keys.values()), self._context)
        while True:
            salt = fresh_salt()
            words = words_of(points, salt)
            try:
                table = build(words, shares ^ words[:, PAD])
            except TableUnsolvable:
                continue
            break
        tags = _as_tags(words[:, TAG])
        self._order = np.argsort(tags, kind="stable")
        self._tags = tags[self._order]
        return HiddenTable(salt, table.astype("<u8").tobytes())

    def power(self, blinded: bytes, workers: Workers) -> bytes:
        """Some of the leader's points to the power of k_i; they leave in the order π only."""
        return workers.power(blinded, self._scalar)

    def shuffled(self, powers: bytes) -> Points:
        """All of the leader's points to the power of k_i, in the order π."""
        points = np.frombuffer(powers, dtype=np.uint8).reshape(-1, POINT_BYTES)
        shares = [self._shares[holder] for holder in range(len(self._seal_keys) + 1)]
        return Points(points[permutation(shares, len(points))].tobytes())

    def common(self, tags: bytes) -> list[str]:
        """The ids of the intersection.

        Raises:
            PsiError: if a tag is of no id of this holder, or comes twice.
        """
        asked = np.frombuffer(tags, dtype=_TAG_TYPE)
        places = np.minimum(np.searchsorted(self._tags, asked), len(self._tags) - 1)
        if (self._tags[places] != asked).any() or len(np.unique(places)) != len(places):
            raise PsiError("the leader names ids that are not in this table: one of the two sides is at fault")
        return [self._ids[row] for row in self._order[places]]

    def share(self) -> ShuffleShare:
        """This holder's share of π."""
        return ShuffleShare(self._share)


class Leader:
    """The leader's side."""

    def __init__(self, ids: Sequence[str], context: bytes) -> None:
        self._ids = list(ids)
        secrets.SystemRandom().shuffle(self._ids)  # so that places in the list say nothing
        self._context, self.blinding = context, fresh_blinding()
        self._tags: list[Words] = []
        self._common: NDArray[np.int64] = np.empty(0, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._ids)

    def blinded(self, workers: Workers, first: int, last: int) -> Points:
        """H(x)^r of some of the ids."""
        return Points(workers.hashed_power(self._ids[first:last], self._context, self.blinding.scalar))

    def unblinded(self, powers: bytes, workers: Workers) -> bytes:
        """F_i of some of the leader's ids, in the order π."""
        return workers.power(powers, self.blinding.inverse)

    def sums(self, evaluated: bytes | bytearray, salt: bytes, slots: bytes | bytearray, keys: int) -> Words:
        """What one holder's table, made for `keys` ids, adds to the sum of every id. Holders come in their order."""
        if len(evaluated) != POINT_BYTES * len(self._ids):
            raise PsiError(f"{len(evaluated) // POINT_BYTES} points came back for {len(self._ids)}")
        if len(salt) != SALT_BYTES or len(slots) != VALUE_BYTES * slots_for(keys):
            raise PsiError(f"a table of {len(slots) // VALUE_BYTES} slots came; {keys} ids need {slots_for(keys)}")
        table = np.frombuffer(slots, dtype="<u8").reshape(-1, 2)
        tags, found = (np.empty((len(self._ids), 2), dtype="<u8") for _ in range(2))
        for first in range(0, len(self._ids), _HASHED_AT_ONCE):
            some = slice(first, first + _HASHED_AT_ONCE)
            words = words_of(bytes(evaluated[POINT_BYTES * some.start : POINT_BYTES * some.stop]), salt)
            tags[some], found[some] = words[:, TAG], look_up(words, table, keys) ^ words[:, PAD]
        self._tags.append(tags)
        return found

    def match(self, sums: Sequence[Words]) -> list[Tags]:
        """Find the intersection; a list of tags for each holder."""
        total = np.bitwise_xor.reduce(np.stack(sums), axis=0)
        self._common = np.flatnonzero(~total.any(axis=1))
        return [Tags(tags[self._common].astype("<u8").tobytes()) for tags in self._tags]

    def common(self, shares: Sequence[bytes]) -> list[str]:
        """The ids of the intersection, once every holder has given up its share of π."""
        if any(len(share) != SHARE_BYTES for share in shares):
            raise PsiError(f"a share of the shuffle has {SHARE_BYTES} bytes")
        order = permutation(shares, len(self._ids))
        return [self._ids[row] for row in order[self._common]]


def shares_of(ids: Sequence[str], pair_keys: Sequence[bytes], context: bytes) -> Words:
    """s_i(y): pseudo-random, and 0 in the sum over all holders, since each pair's part is in it twice."""
    total = np.zeros((len(ids), 2), dtype=np.uint64)
    for first in range(0, len(ids), _HASHED_AT_ONCE):
        some = ids[first : first + _HASHED_AT_ONCE]
        for key in pair_keys:
            hashes = (
                hashlib.blake2b(identity.encode(), digest_size=VALUE_BYTES, key=key, salt=context[:16]).digest()
                for identity in some
            )
            total[first : first + len(some)] ^= np.frombuffer(b"".join(hashes), dtype="<u8").reshape(-1, 2)
    return total


def _as_tags(words: Words) -> NDArray[np.void]:
    return np.frombuffer(np.ascontiguousarray(words).astype("<u8").tobytes(), dtype=_TAG_TYPE)


def permutation(shares: Sequence[bytes], count: int) -> NDArray[np.int64]:
    """π: uniform to whoever lacks one of the shares."""
    key = hashlib.sha256(b"parley/psi/shuffle/v1" + b"".join(shares)).digest()
    keystream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(8 * count))
    return np.argsort(np.frombuffer(keystream, dtype="<u8"), kind="stable")


def _derived(secret: bytes, purpose: bytes) -> bytes:
    return hashlib.blake2b(purpose, key=secret, digest_size=32).digest()
