"""Who shares masks with whom in a sum over many parties: a few neighbours each instead of all pairs.

After Bell, Bonawitz, Gascón, Lepoint and Raykova, Secure single-server aggregation with (poly)logarithmic overhead,
CCS 2020, section 3: the participants stand in a ring in random order, and each shares masks with the k/2 before and
the k/2 after it (a Harary graph). What a coalition learns is the sum over each connected part of the others. The others
fall apart only where two stretches of k/2 neighbours each are all in the coalition; with half of n parties in it this
happens with probability below n²/2 · 2^−k. Here k = 2(30 + ⌈log₂ n⌉): below 2^−60 for any n, and 80 at n = 1024.

symbol · code
  n · participants of the sum        k · degree(n), even        ring order · by BLAKE2b(salt, party)

# differs from the paper: the order comes from what all parties of the session agreed to (`privacy.consent`), to which
# each gives a nonce, and not from the server: nobody chooses its neighbours. Whoever speaks last can draw nonces until
# an order suits it; 2^t draws make the bound 2^t times as large, which is what the 60 bits leave room for.
# differs from the paper: sums that go on without a lost party (`privacy.dropout`) keep all pairs.
"""

import hashlib
from functools import lru_cache

_MARGIN_BITS = 30


def degree(participants: int) -> int:
    """k: with how many others each participant shares masks; all of them where they are not more."""
    wanted = 2 * (_MARGIN_BITS + max(1, participants - 1).bit_length())
    return min(wanted, participants - 1)


class MaskGraph:
    """The neighbours of a session's parties, in any of its sums."""

    def __init__(self, salt: bytes) -> None:
        self._salt = hashlib.sha256(b"parley/mask-graph/v1" + salt).digest()
        self._ring = lru_cache(maxsize=4)(self._ordered)

    def neighbours(self, index: int, participants: frozenset[int]) -> frozenset[int]:
        """Whom party `index` shares masks with; symmetric, and the same at every party."""
        others = len(participants) - 1
        if degree(len(participants)) == others:
            return participants - {index}
        ring, places = self._ring(participants)
        half, place = degree(len(participants)) // 2, places[index]
        return frozenset(ring[(place + step) % len(ring)] for step in (*range(-half, 0), *range(1, half + 1)))

    def _ordered(self, participants: frozenset[int]) -> tuple[list[int], dict[int, int]]:
        ring = sorted(participants, key=self._place)
        return ring, {party: place for place, party in enumerate(ring)}

    def _place(self, party: int) -> bytes:
        return hashlib.blake2b(party.to_bytes(8, "big"), key=self._salt, digest_size=16).digest()
