"""Steps of sums that go on without a lost party, as protos. Only releases are encoded."""

from collections.abc import Iterable, Mapping
from typing import Any

from parley.contracts.aggregation.v1 import aggregation_pb2 as pb
from parley.privacy.dropout import SEALED_BYTES, Disclosure
from parley.privacy.mask_stream import KEY_BYTES
from parley.privacy.recovery import (
    AskDisclosure,
    AskKey,
    AskShares,
    AskValues,
    KeyOffer,
    RecoveryStep,
    Settlement,
    ShareBundle,
)
from parley.privacy.release import Release, bitmap, members
from parley.privacy.shamir import SHARE_BYTES, Share, SharesInconsistent
from parley.privacy.transcript import digest_of
from parley.protocols.aggregation.party_sets import MOST_PARTIES, further_bits, low_bits, party_bits
from parley.protocols.tensor.codec import Blobs, MessageInvalid

STEP = "recovery"
"""The field of an instruction that holds a step of its sum, for one participant."""


def has_step(instruction: Any) -> bool:
    """Whether an instruction is a step of a sum with recovery."""
    return STEP in instruction.DESCRIPTOR.fields_by_name and bool(instruction.HasField(STEP))


def common_digest(instruction: Any, blobs: Blobs) -> bytes:
    """SHA-256 of what an instruction says to all participants of its sum: the step, and its number, are left out."""
    common = type(instruction)()
    common.CopyFrom(instruction)
    common.ClearField(STEP)
    common.ClearField("round")
    return digest_of(common.SerializeToString(deterministic=True), blobs)


def encode_step(release: Release[RecoveryStep]) -> pb.RecoveryStep:
    """What the coordinator asks of one participant."""
    match release.content:
        case AskKey():
            return pb.RecoveryStep(key=pb.RoundKeyStep())
        case AskShares(sum_id, keys, instruction):
            listed = [pb.RoundKey(party=party, public_key=keys[party]) for party in sorted(keys)]
            return pb.RecoveryStep(sum_id=sum_id, shares=pb.SharesStep(keys=listed, instruction=instruction))
        case AskValues(sum_id, sealed):
            return pb.RecoveryStep(sum_id=sum_id, values=pb.ValuesStep(shares=_sealed(sealed)))
        case AskDisclosure(sum_id, survivors):
            bits = bitmap(survivors)
            asked = pb.DisclosureStep(survivors=low_bits(bits), further_survivors=further_bits(bits))
            return pb.RecoveryStep(sum_id=sum_id, disclosure=asked)


def decode_step(message: pb.RecoveryStep) -> RecoveryStep:
    """A step as a party's gate takes it."""
    match message.WhichOneof("ask"):
        case "key":
            return AskKey()
        case "shares":
            keys = _by_party(((key.party, key.public_key) for key in message.shares.keys), KEY_BYTES, "round key")
            return AskShares(message.sum_id, keys, message.shares.instruction)
        case "values":
            return AskValues(message.sum_id, _opened(message.values.shares))
        case "disclosure":
            asked = message.disclosure
            survivors = members(party_bits(asked.survivors, asked.further_survivors))
            return AskDisclosure(message.sum_id, frozenset(survivors))
    raise MessageInvalid("recovery: a step asks for a key, shares, values or a disclosure")


def encode_offer(release: Release[KeyOffer]) -> pb.RoundKey:
    """A party's round key."""
    return pb.RoundKey(party=release.content.party, public_key=release.content.public_key)


def decode_offer(message: pb.RoundKey) -> KeyOffer:
    """A party's round key."""
    return KeyOffer(message.party, _exact(message.public_key, KEY_BYTES, "round key"))


def encode_bundle(release: Release[ShareBundle]) -> pb.ShareBundle:
    """A party's sealed shares."""
    return pb.ShareBundle(shares=_sealed(release.content.sealed))


def decode_bundle(message: pb.ShareBundle) -> ShareBundle:
    """A party's sealed shares; they stay closed."""
    return ShareBundle(_opened(message.shares))


def encode_settlement(release: Release[Settlement]) -> pb.Disclosure:
    """A survivor's disclosure."""
    shares = release.content.disclosure
    return pb.Disclosure(
        seeds=_disclosed(shares.seed_shares),
        keys=_disclosed(shares.key_shares),
        next_key=release.content.next_key,
    )


def decode_settlement(message: pb.Disclosure, holder: int) -> Settlement:
    """The disclosure of party `holder`, whose shares lie at its own point."""

    def shares(listed: Iterable[pb.DisclosedShare]) -> dict[int, Share]:
        found = _by_party(((one.party, one.share) for one in listed), SHARE_BYTES, "disclosed share")
        try:
            return {party: Share.from_bytes(holder + 1, value) for party, value in found.items()}
        except SharesInconsistent as problem:
            raise MessageInvalid(f"disclosed share: {problem}") from None

    disclosure = Disclosure(holder, shares(message.seeds), shares(message.keys))
    return Settlement(disclosure, _exact(message.next_key, KEY_BYTES, "next_key"))


def _sealed(sealed: Mapping[int, bytes]) -> list[pb.SealedShares]:
    return [pb.SealedShares(party=party, sealed=sealed[party]) for party in sorted(sealed)]


def _opened(listed: Iterable[pb.SealedShares]) -> dict[int, bytes]:
    return _by_party(((one.party, one.sealed) for one in listed), SEALED_BYTES, "sealed shares")


def _disclosed(shares: Mapping[int, Share]) -> list[pb.DisclosedShare]:
    return [pb.DisclosedShare(party=party, share=shares[party].to_bytes()) for party in sorted(shares)]


def _by_party(listed: Iterable[tuple[int, bytes]], size: int, what: str) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    for party, content in listed:
        if party in found or party >= MOST_PARTIES:
            raise MessageInvalid(f"{what}: party {party} is named twice, or is none of {MOST_PARTIES}")
        found[party] = _exact(content, size, what)
    return found


def _exact(content: bytes, size: int, what: str) -> bytes:
    if len(content) != size:
        raise MessageInvalid(f"{what}: {len(content)} bytes came, {size} are expected")
    return content
