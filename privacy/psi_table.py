"""A table that gives each key its value and every other key noise: an oblivious key-value store.

A form of the garbled cuckoo table (B. Pinkas, M. Rosulek, N. Trieu, A. Yanai, "PSI from PaXoS",
EUROCRYPT 2020): a key has three slots, one in each third of the table, and a subset of 64 dense slots; its value is
the exclusive or over them. If the values are random, so is the table, whatever the keys: nobody who has it can tell
which keys it was made for, not even when shown one.

| paper | code | meaning |
|---|---|---|
| l(x) | `_slots` | the three sparse slots of a key |
| r(x) | `words[:, DENSE]` | its dense slots, as bits |
| D | the table | sparse slots, then dense ones; 128 bits each |

The sparse system is solved by peeling: a slot that only one key uses can be set last for that key. What cannot be
peeled (the 2-core; with 1.35 slots per key a handful of keys, mostly none) is solved over the dense slots.
"""

import hashlib
import secrets
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from parley.privacy.psi_curve import POINT_BYTES

Words = NDArray[np.uint64]
Indices = NDArray[np.intp]
Rows = NDArray[np.uint32]

VALUE_BYTES, SALT_BYTES, DENSE_SLOTS = 16, 16, 64
LARGEST_CORE = 24
"""Keys that the dense slots are asked to solve: 64 random columns have that rank but for one case in 2^40."""
DENSE, PAD, TAG = 3, slice(4, 6), slice(6, 8)
"""Which of a key's eight words serves what; the first three are its sparse slots."""
_AT_ONCE = 1 << 18


class TableUnsolvable(ArithmeticError):
    """No table exists for these keys under this salt; another salt helps."""


def slots_for(keys: int) -> int:
    """Slots of a table for so many keys: it depends on nothing else."""
    return 3 * _segment(keys) + DENSE_SLOTS


def words_of(points: bytes, salt: bytes) -> Words:
    """Eight pseudo-random words for each point: slots, dense bits, pad and tag."""
    digests = (
        hashlib.blake2b(points[start : start + POINT_BYTES], key=salt, person=b"parley/psi/tab").digest()
        for start in range(0, len(points), POINT_BYTES)
    )
    return np.frombuffer(b"".join(digests), dtype="<u8").reshape(-1, 8)


class Keys:
    """The keys that a table is made for, put in some at a time: 36 bytes for each."""

    def __init__(self, count: int) -> None:
        self.slots = np.empty((count, 3), dtype=np.uint32)
        self.dense = np.empty(count, dtype=np.uint64)
        self.values = np.empty((count, 2), dtype=np.uint64)
        """What the table shall hold for each."""

    def __len__(self) -> int:
        return len(self.dense)

    def put(self, first: int, words: Words, values: Words) -> None:
        """Some keys, and what the table shall hold for them."""
        some = slice(first, first + len(words))
        self.slots[some], self.dense[some], self.values[some] = _slots(words, len(self)), words[:, DENSE], values


def fresh_salt() -> bytes:
    """A salt for one table."""
    return secrets.token_bytes(SALT_BYTES)


def build(keys: Keys) -> Words:
    """The table in which each key has its value; slots that nobody needs are random. The values are used up.

    Raises:
        TableUnsolvable: with a chance of about 2^-40.
    """
    table, slots, wanted = _random(slots_for(len(keys))), keys.slots, keys.values
    peeled, core = _peel(slots, len(table))
    _solve_core(table, keys.dense[core], wanted[core] ^ np.bitwise_xor.reduce(table[slots[core]], axis=1))
    for some in _pieces(len(keys)):
        wanted[some] ^= _dense_part(keys.dense[some], table)
    for rows, freed in reversed(peeled):
        table[freed] = 0
        for some in _pieces(len(rows)):
            chosen = rows[some]
            table[freed[some]] = wanted[chosen] ^ np.bitwise_xor.reduce(table[slots[chosen]], axis=1)
    return table


def look_up(words: Words, table: Words, keys: int) -> Words:
    """What a table that was made for `keys` keys holds for each row of `words`."""
    sparse = np.bitwise_xor.reduce(table[_slots(words, keys)], axis=1)
    return np.asarray(sparse ^ _dense_part(words[:, DENSE], table), dtype=np.uint64)


def _segment(keys: int) -> int:
    return 9 * keys // 20 + 16


def _pieces(count: int) -> Iterator[slice]:
    return (slice(first, first + _AT_ONCE) for first in range(0, count, _AT_ONCE))


def _slots(words: Words, keys: int) -> Indices:
    segment = _segment(keys)
    return (words[:, :3] % np.uint64(segment)).astype(np.intp) + segment * np.arange(3)


def _dense_part(bits: Words, table: Words) -> Words:
    total = np.zeros((len(bits), 2), dtype=np.uint64)
    for place, value in enumerate(table[-DENSE_SLOTS:]):
        total ^= ((bits >> np.uint64(place)) & np.uint64(1))[:, None] * value
    return total


def _peel(slots: NDArray[np.uint32], size: int) -> tuple[list[tuple[Rows, Rows]], Indices]:
    """Rounds of (keys, a slot of each that no key of a later round uses), and the keys that are left."""
    uses = np.zeros(size, dtype=np.uint32)
    users = np.zeros(size, dtype=np.uint32)  # sum over the keys that use a slot, mod 2^32: its user where there is one
    for some in _pieces(len(slots)):
        used = slots[some].ravel()
        np.add.at(uses, used, np.uint32(1))
        np.add.at(users, used, np.repeat(np.arange(some.start, some.start + len(used) // 3, dtype=np.uint32), 3))
    left, rounds = np.ones(len(slots), dtype=bool), []
    single = np.flatnonzero(uses == 1).astype(np.uint32)
    while single.size:
        keys, first = np.unique(users[single], return_index=True)
        rounds.append((keys, single[first]))
        left[keys] = False
        for some in _pieces(len(keys)):
            touched = slots[keys[some]].ravel()
            np.subtract.at(uses, touched, np.uint32(1))
            np.subtract.at(users, touched, np.repeat(keys[some], 3))
        single = np.flatnonzero(uses == 1).astype(np.uint32)
    return rounds, np.flatnonzero(left)


def _solve_core(table: Words, bits: Words, values: Words) -> None:
    """Choose dense slots such that the chosen ones of every remaining key add up to its value."""
    if len(bits) > LARGEST_CORE:
        raise TableUnsolvable(f"{len(bits)} keys cannot be peeled")
    rows = [(int(row), _number(value)) for row, value in zip(bits, values, strict=True)]
    solved: list[tuple[int, int, int]] = []
    for row, value in rows:
        for pivot, other, other_value in solved:
            if row >> pivot & 1:
                row, value = row ^ other, value ^ other_value
        if not row:
            raise TableUnsolvable("two keys ask for the same dense slots")
        solved.append((row.bit_length() - 1, row, value))
    dense = table[-DENSE_SLOTS:]
    for pivot, row, value in reversed(solved):
        for place in _places(row ^ 1 << pivot):
            value ^= _number(dense[place])
        dense[pivot] = np.frombuffer(value.to_bytes(VALUE_BYTES, "little"), dtype="<u8")


def _places(row: int) -> Iterator[int]:
    return (place for place in range(DENSE_SLOTS) if row >> place & 1)


def _number(value: Words) -> int:
    return int.from_bytes(value.astype("<u8").tobytes(), "little")


def _random(size: int) -> Words:
    table = np.empty((size, 2), dtype="<u8")
    for some in _pieces(size):
        table[some] = np.frombuffer(secrets.token_bytes(table[some].nbytes), dtype="<u8").reshape(-1, 2)
    return table
