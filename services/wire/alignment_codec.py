"""Messages of an alignment. What was derived from ids is encoded from a release only, in batches of bounded size."""

from parley.contracts.alignment.v1 import alignment_service_pb2 as pb
from parley.privacy.psi import PART, HiddenTable, Points, SealedShares, ShuffleShare, Tags
from parley.privacy.release import Release
from parley.protocols.tensor.codec import MessageInvalid
from parley.tables.identities import Duplicates

BATCH_IDS = PART
"""Ids of one message: half a megabyte of points."""
MOST_IDS = 1 << 24
"""Most ids of one organisation."""
_DUPLICATES: dict[int, Duplicates] = {
    pb.DUPLICATES_REFUSE: "refuse",
    pb.DUPLICATES_FIRST: "first",
    pb.DUPLICATES_DROP: "drop",
}


def encode_duplicates(duplicates: Duplicates) -> "pb.Duplicates.ValueType":
    """What becomes of repeated ids."""
    return next(code for code, name in _DUPLICATES.items() if name == duplicates)  # type: ignore[return-value]


def decode_duplicates(code: int) -> Duplicates:
    """What becomes of repeated ids; left open means to refuse them."""
    if code == pb.DUPLICATES_UNSPECIFIED:
        return "refuse"
    if code not in _DUPLICATES:
        raise MessageInvalid(f"duplicates: {code} is not one of refuse, first and drop")
    return _DUPLICATES[code]


def encode_blinded(release: Release[Points]) -> pb.IntersectRequest:
    """A batch of the coordinator's ids."""
    return pb.IntersectRequest(blinded_ids=pb.BlindedIds(points=release.content.data))


def encode_evaluated(release: Release[Points]) -> pb.IntersectResponse:
    """Some of the coordinator's ids, evaluated and shuffled."""
    return pb.IntersectResponse(evaluated_ids=pb.EvaluatedIds(points=release.content.data))


def encode_table(release: Release[HiddenTable]) -> pb.IntersectResponse:
    """A part of a party's table."""
    return pb.IntersectResponse(table_slots=pb.TableSlots(salt=release.content.salt, slots=release.content.slots))


def encode_matches(release: Release[Tags], total: int) -> pb.IntersectRequest:
    """A part of the intersection for one party; at least one message, also where it is empty."""
    return pb.IntersectRequest(matches=pb.Matches(total=total, tags=release.content.data))


def encode_sealed(release: Release[SealedShares]) -> pb.IntersectResponse:
    """A party's share of the shuffle for every other party."""
    return pb.IntersectResponse(begun=pb.Begun(sealed_shares=release.content.data))


def encode_share(release: Release[ShuffleShare]) -> pb.IntersectResponse:
    """A party's share of the shuffle for the coordinator."""
    return pb.IntersectResponse(accepted=pb.Accepted(shuffle_share=release.content.data))
