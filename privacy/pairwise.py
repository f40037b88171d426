"""Pairwise masks that cancel in the sum.

After Bonawitz et al., Practical secure aggregation for privacy-preserving machine learning, CCS 2017, section 4:
    y_u = enc(x_u) + Σ_{v>u} PRG(s_uv) − Σ_{v<u} PRG(s_uv)  [+ PRG(b_u)]
over the round's participants, in the ring. Any number of colluders short of all but two learn only the sum of the
others. The self mask b_u is added where dropout recovery is on (`parley.privacy.dropout`).

symbol · code · held by
  u, v   · index of a party
  s_uv   · secrets[v]   32 bytes from `session_keys.pair_secret`    u and v
  b_u    · self_mask    32 bytes                                    u, and t of n as Shamir shares
  PRG    · mask_stream  AES-256-CTR, a stream for each (key, round, told[v])

# differs from the paper: the mask of a round depends on what u and v were told up to that round
# (`privacy.transcript`), and a few elements that everyone sets to zero show whether a sum has opened.
"""

from collections.abc import Iterable, Mapping

import numpy as np

from parley.privacy.mask_graph import MaskGraph
from parley.privacy.mask_stream import MaskStream, PairStream
from parley.privacy.ring import Ring, RingArray
from parley.privacy.trees import TooFewParties

SMALLEST_SUM = 2
"""A sum over fewer parties would be one party's value."""


class RoundReused(ValueError):
    """A round id is not larger than every one used before.

    Two values under one mask give away their difference. A retry is answered with the bytes of the first answer, which
    the caller keeps; it does not come here.
    """


class SumDoesNotOpen(ValueError):
    """Masks are left in a sum: the parties were told different things, or somebody changed an addend."""


class NotAParticipant(ValueError):
    """This party, or a peer without a key, is not in a position to take part in the round."""


def with_check(encoded: RingArray, ring: Ring) -> RingArray:
    """A copy of a vector with 64 bits of zeros after it: in a sum that opens they are zeros again."""
    spare = 64 // ring.bits
    longer = np.zeros(encoded.size + spare, ring.dtype)
    longer[:-spare] = ring.checked(encoded)
    return longer


def without_check(total: RingArray, ring: Ring) -> RingArray:
    """The sum without its zeros.

    Raises:
        SumDoesNotOpen: if they are none; by chance they look like zeros once in 2^64 sums.
    """
    spare = 64 // ring.bits
    if total.size < spare or total[-spare:].any():
        raise SumDoesNotOpen(
            "the masks do not cancel in the sum: its parties were told different things, or an addend was changed on "
            "its way; nothing was opened"
        )
    return total[:-spare]


class PairwiseMasker:
    """One party's masks for one session. It remembers the last round, and with a persisted key that must persist too.

    The round id names the values: the caller gives the same values the same round id, so that they can never enter two
    sums over different participants (whose difference would be a party's value).
    """

    def __init__(
        self,
        index: int,
        secrets: Mapping[int, bytes],
        ring: Ring,
        *,
        minimum_parties: int = SMALLEST_SUM,
        self_mask: bytes | None = None,
        last_round: int = -1,
        graph: MaskGraph | None = None,
    ) -> None:
        """Masks are shared with the neighbours that `graph` gives in a sum of many; with everybody if left out."""
        if index in secrets:
            raise NotAParticipant(f"party {index} cannot hold a pair secret with itself")
        if minimum_parties < SMALLEST_SUM:
            raise TooFewParties(f"minimum_parties must be at least {SMALLEST_SUM}, got {minimum_parties}")
        self._index = index
        self._secrets, self._graph = secrets, graph
        self._streams: dict[int, PairStream] = {}
        self._ring = ring
        self._minimum = minimum_parties
        self._self_mask = None if self_mask is None else MaskStream(self_mask)
        self._last_round = last_round

    @property
    def last_round(self) -> int:
        """The largest round id used; −1 before the first."""
        return self._last_round

    def mask(
        self,
        round_id: int,
        encoded: RingArray,
        participants: Iterable[int],
        told: Mapping[int, bytes] | None = None,
    ) -> RingArray:
        """y_u for this round; refused, and nothing used up, if the round or its participants are not acceptable.

        `told` is what this party and each other participant were both told; nothing if left out.
        """
        masked = self._ring.checked(encoded).copy(order="C")
        self.mask_in_place(round_id, masked, participants, told)
        return masked

    def mask_in_place(
        self, round_id: int, masked: RingArray, participants: Iterable[int], told: Mapping[int, bytes] | None = None
    ) -> None:
        """The same in an array that the caller gives away."""
        chosen, told = frozenset(participants), told or {}
        self._check(round_id, chosen)
        self._last_round = round_id
        alone = chosen - {self._index}
        for peer in sorted(alone if self._graph is None else self._graph.neighbours(self._index, chosen)):
            self._stream(peer).add(masked, round_id, told.get(peer, b""), self._ring, subtract=peer < self._index)
        if self._self_mask is not None:
            self._self_mask.add(masked, round_id, self._ring)

    def _stream(self, peer: int) -> PairStream:
        """The stream shared with a peer, made when the two first share a mask."""
        if peer not in self._streams:
            self._streams[peer] = PairStream(self._secrets[peer])
        return self._streams[peer]

    def _check(self, round_id: int, participants: frozenset[int]) -> None:
        if round_id <= self._last_round:
            raise RoundReused(
                f"round {round_id} is not after round {self._last_round}: "
                "replay the kept answer for a retry, take a new round id for new values"
            )
        if self._index not in participants:
            raise NotAParticipant(f"party {self._index} is not among the participants {sorted(participants)}")
        unknown = sorted(participants - {self._index} - self._secrets.keys())
        if unknown:
            raise NotAParticipant(f"no key was agreed with parties {unknown}: exchange keys before the round")
        if len(participants) < self._minimum:
            raise TooFewParties(
                f"a sum of {len(participants)} parties is below this party's minimum of {self._minimum}: "
                "sample more parties, or lower the minimum in the party's policy"
            )
        self._ring.check(len(participants))


def sum_masked(masked: Mapping[int, RingArray], participants: Iterable[int], ring: Ring) -> RingArray:
    """The ring sum of all participants' y_u: their masks cancel. Refused unless exactly the participants answered."""
    expected = frozenset(participants)
    if masked.keys() != expected:
        raise NotAParticipant(
            f"answers came from {sorted(masked)}, the round's participants are {sorted(expected)}: the masks of the "
            "missing would stay in the sum; wait for them, or run with dropout recovery"
        )
    answers = iter(masked.values())
    total = ring.checked(next(answers)).copy()
    for answer in answers:
        total += ring.checked(answer)
    return total
