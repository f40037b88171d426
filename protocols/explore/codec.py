"""Rounds as protos. Only releases are encoded; what is decoded is checked here, before a role sees it."""

from collections import deque

import numpy as np

from parley.contracts.explore.v1 import explore_pb2 as pb
from parley.privacy.release import Addend, MaskedColumns, Release
from parley.protocols.aggregation.codec import decode_addend, encode_addend, enum_codes, named
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
    if asked.products is not None:
        encode_tensor(asked.products, blobs, into=message.products)
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
    products = None
    if message.HasField("products"):
        products = decode_tensor(message.products, blobs, name="products", ndim=1)
    if phase == "correlate" and (labels is not None or products is not None):
        raise MessageInvalid("labels and products come with the round that keeps figures")
    return ExploreRound(phase, message.k, labels, products)


def encode_contribution(number: int, _: ExploreRound, release: Release[Addend] | None) -> tuple[pb.Contribution, Blobs]:
    """A party's answer to round `number`; without an addend it only acknowledges."""
    message, blobs = pb.Contribution(round=number), deque[memoryview]()
    if release is not None:
        encode_addend(release, blobs, into=message.sum)
    return message, blobs


def decode_contribution(message: pb.Contribution, blobs: Blobs, release: Release[ExploreRound]) -> Addend | None:
    """A party's part of the sum that a round asked for; None for an acknowledgement."""
    if message.HasField("sum") != release.content.summed:
        raise MessageInvalid(f"this is no answer to {release.content.phase}")
    return decode_addend(message.sum, blobs) if message.HasField("sum") else None


def encode_masked_columns(release: Release[MaskedColumns], blobs: Blobs) -> pb.MaskedColumns:
    """Columns for another party."""
    message = pb.MaskedColumns(pair=release.content.pair)
    encode_tensor(release.content.elements, blobs, into=message.elements)
    return message


def decode_masked_columns(message: pb.MaskedColumns, blobs: Blobs) -> MaskedColumns:
    """Another party's columns."""
    elements = decode_tensor(message.elements, blobs, name="elements", kinds="u", ndim=2)
    if elements.dtype.itemsize != 8:
        raise MessageInvalid("elements: 64 bits are expected")
    return MaskedColumns(message.pair, elements.astype(np.uint64))


PROTOCOL = CrossingProtocol(
    "explore",
    ExploreSpec,
    pb.Instruction,
    pb.Contribution,
    decode_instruction,
    CROSSINGS,
    statements,
    body="explore",
    peer_messages=(pb.MaskedColumns,),
)
