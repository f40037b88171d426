"""Rounds as protos. Only releases are encoded; what is decoded is checked here, before a role sees it."""

from federated_ridge.contracts.v1 import ridge_pb2 as pb
from federated_ridge.crossings import CROSSINGS
from federated_ridge.messages import Phase, RidgeRound
from federated_ridge.settings import RidgeSpec
from parley.privacy.release import Addend, Release
from parley.protocols.aggregation.codec import decode_addend, encode_addend, enum_codes, named
from parley.protocols.protocol import CrossingProtocol
from parley.protocols.tensor.codec import Blobs, MessageInvalid, decode_tensor, encode_tensor

_PHASES: dict[Phase, pb.Phase.ValueType] = enum_codes(pb.Phase.DESCRIPTOR)


def encode_instruction(number: int, release: Release[RidgeRound]) -> tuple[pb.Instruction, Blobs]:
    """The instruction of round `number`."""
    asked, blobs = release.content, Blobs()
    message = pb.Instruction(round=number, phase=_PHASES[asked.phase])
    if asked.coefficients is not None:
        encode_tensor(asked.coefficients, blobs, into=message.coefficients)
    return message, blobs


def decode_instruction(message: pb.Instruction, blobs: Blobs) -> RidgeRound:
    """What a round asks of a party."""
    phase, coefficients = named(_PHASES, message.phase), None
    if message.HasField("coefficients"):
        coefficients = decode_tensor(message.coefficients, blobs, name="coefficients", ndim=1)
    return RidgeRound(phase, coefficients=coefficients)


def encode_contribution(number: int, _: RidgeRound, release: Release[Addend] | None) -> tuple[pb.Contribution, Blobs]:
    """A party's answer to round `number`; without an addend it only acknowledges."""
    message, blobs = pb.Contribution(round=number), Blobs()
    if release is not None:
        encode_addend(release, blobs, into=message.sum)
    return message, blobs


def decode_contribution(message: pb.Contribution, blobs: Blobs, release: Release[RidgeRound]) -> Addend | None:
    """A party's part of the sum that a round asked for; None for an acknowledgement."""
    if message.HasField("sum") != release.content.summed:
        raise MessageInvalid(f"this is no answer to {release.content.phase}")
    return decode_addend(message.sum, blobs) if message.HasField("sum") else None


PROTOCOL = CrossingProtocol(
    "federated_ridge", RidgeSpec, pb.Instruction, pb.Contribution, decode_instruction, CROSSINGS
)
