"""The clock of a decentralised run as protos: ranges of steps down, measures up. Only releases are encoded."""

from collections import deque

from parley.contracts.decentralised.v1 import decentralised_pb2 as pb
from parley.privacy.release import Addend, Release
from parley.protocols.aggregation.codec import decode_addend, encode_addend, enum_codes, named
from parley.protocols.decentralised.messages import PeerTraffic, Phase, StepRange
from parley.protocols.tensor.codec import Blobs, MessageInvalid

_PHASES: dict[Phase, pb.Phase.ValueType] = enum_codes(pb.Phase.DESCRIPTOR)
LARGEST_COUNT = 1 << 40
Instruction, Contribution = pb.Instruction, pb.Contribution


def encode_instruction(number: int, release: Release[StepRange]) -> tuple[pb.Instruction, Blobs]:
    """The instruction of round `number`."""
    asked = release.content
    message = pb.Instruction(round=number, phase=_PHASES[asked.phase], k=asked.k, first=asked.first, last=asked.last)
    return message, deque()


def decode_instruction(message: pb.Instruction, blobs: Blobs) -> StepRange:  # noqa: ARG001 (it announces no tensor)
    """What the clock asks."""
    if max(message.k, message.first, message.last) > LARGEST_COUNT or message.first > message.last:
        raise MessageInvalid(f"steps {message.first} to {message.last} of iteration {message.k} are out of range")
    return StepRange(named(_PHASES, message.phase), message.k, message.first, message.last)


def encode_contribution(
    number: int, traffic: PeerTraffic, release: Release[Addend] | None
) -> tuple[pb.Contribution, Blobs]:
    """A party's answer to round `number`; without an addend it only acknowledges."""
    blobs: Blobs = deque()
    message = pb.Contribution(
        round=number, party=traffic.party, peer_messages=traffic.messages, peer_bytes=traffic.payload_bytes
    )
    if release is None:
        message.acknowledgement.SetInParent()
    else:
        encode_addend(release, blobs, into=message.measures.sum)
    return message, blobs


def decode_contribution(message: pb.Contribution, blobs: Blobs, asked: StepRange) -> tuple[Addend | None, PeerTraffic]:
    """What a party adds to the sum of an evaluation (None for an acknowledgement), and its traffic."""
    share = message.WhichOneof("share")
    if share != ("measures" if asked.answer == "sum" else "acknowledgement"):
        raise MessageInvalid(f"phase {asked.phase} cannot be answered with {share}")
    traffic = PeerTraffic(message.party, message.peer_messages, message.peer_bytes)
    return decode_addend(message.measures.sum, blobs) if share == "measures" else None, traffic
