"""Rounds as protos. Only releases are encoded; what is decoded is checked here, before a role sees it."""

from parley.contracts.explore.v1 import explore_pb2 as pb
from parley.privacy.release import Addend, Release
from parley.protocols.aggregation.codec import enum_codes, named
from parley.protocols.explore.crossings import CROSSINGS, statements
from parley.protocols.explore.messages import ExploreRound, Phase, ReleasedLabels
from parley.protocols.explore.settings import ExploreSpec
from parley.protocols.protocol import CrossingProtocol
from parley.protocols.tensor.codec import Blobs, MessageInvalid, decode_tensor, encode_tensor

_PHASES: dict[Phase, pb.Phase.ValueType] = enum_codes(pb.Phase.DESCRIPTOR)


def encode_instruction(number: int, release: Release[ExploreRound]) -> tuple[pb.Instruction, Blobs]:
    """The instruction of round `number`."""
    asked, blobs = release.content, Blobs()
    message = pb.Instruction(round=number, phase=_PHASES[asked.phase], k=asked.k)
    if asked.labels is not None:
        encode_tensor(asked.labels.classes, blobs, into=message.classes)
        message.flip = asked.labels.flip
    return message, blobs


def decode_instruction(message: pb.Instruction, blobs: Blobs) -> ExploreRound:
    """What a round asks of a party."""
    phase, labels = named(_PHASES, message.phase), None
    if message.k > 1:
        raise MessageInvalid("a run that explores has one iteration")
    if not 0 <= message.flip < 0.5:
        raise MessageInvalid("flip lies between 0 and 1/2")
    if message.HasField("classes"):
        classes = decode_tensor(message.classes, blobs, name="classes", kinds="u", ndim=1)
        if classes.size and classes.max() > 1:
            raise MessageInvalid("classes are 0 or 1")
        labels = ReleasedLabels(classes, message.flip)
    return ExploreRound(phase, message.k, labels)


def encode_contribution(number: int, _: ExploreRound, release: Release[Addend] | None) -> tuple[pb.Contribution, Blobs]:
    """That round `number` is done."""
    assert release is None  # noqa: S101 (nothing is summed)
    return pb.Contribution(round=number), Blobs()


def decode_contribution(_: pb.Contribution, __: Blobs, ___: Release[ExploreRound]) -> None:
    """An acknowledgement holds nothing."""


PROTOCOL = CrossingProtocol(
    "explore", ExploreSpec, pb.Instruction, pb.Contribution, decode_instruction, CROSSINGS, statements, body="explore"
)
