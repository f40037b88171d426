"""Rounds as protos. Only releases are encoded; what is decoded is checked here, before a role sees it."""

import math
from collections import deque

from parley.contracts.glm.v1 import glm_pb2 as pb
from parley.privacy.release import Addend, Release
from parley.protocols.aggregation.codec import decode_addend, encode_addend, enum_codes, named
from parley.protocols.glm.crossings import CROSSINGS, statements
from parley.protocols.glm.messages import GlmRound, Phase, Solution
from parley.protocols.glm.settings import GlmSpec
from parley.protocols.protocol import CrossingProtocol
from parley.protocols.tensor.codec import Blobs, MessageInvalid, decode_tensor, encode_tensor

_PHASES: dict[Phase, pb.Phase.ValueType] = enum_codes(pb.Phase.DESCRIPTOR)
_LARGEST_COUNT = 1 << 40


def encode_instruction(number: int, release: Release[GlmRound]) -> tuple[pb.Instruction, Blobs]:
    """The instruction of round `number`."""
    asked, blobs = release.content, Blobs()
    message = pb.Instruction(
        round=number, phase=_PHASES[asked.phase], first=asked.first, count=asked.count, tie=asked.tie, k=asked.k
    )
    if asked.solution is not None:
        encode_tensor(asked.solution.values, blobs, into=message.solution)
        message.freedom = asked.solution.freedom
        if asked.solution.covariance is not None:
            encode_tensor(asked.solution.covariance, blobs, into=message.covariance)
        if asked.solution.inverse_gram is not None:
            encode_tensor(asked.solution.inverse_gram, blobs, into=message.inverse_gram)
    return message, blobs


def decode_instruction(message: pb.Instruction, blobs: Blobs) -> GlmRound:
    """What a round asks of a party."""
    phase, solution = named(_PHASES, message.phase), None
    if max(message.first, message.count, message.k) > _LARGEST_COUNT:
        raise MessageInvalid("a count is out of range")
    if not (math.isfinite(message.freedom) and message.freedom >= 0 and math.isfinite(message.tie)):
        raise MessageInvalid("freedom and tie must be finite, and freedom not negative")
    if phase == "shrink" and (message.tie <= 0 or not message.HasField("solution")):
        raise MessageInvalid("a shrinking step needs a solution and a tie above 0")
    if message.HasField("solution"):
        values = decode_tensor(message.solution, blobs, name="solution", ndim=1)
        covariance = inverse_gram = None
        if message.HasField("covariance"):
            covariance = decode_tensor(message.covariance, blobs, name="covariance", ndim=2)
        if message.HasField("inverse_gram"):
            inverse_gram = decode_tensor(message.inverse_gram, blobs, name="inverse_gram", ndim=2)
        solution = Solution(values, covariance, message.freedom, inverse_gram)
    elif message.HasField("covariance") or message.HasField("inverse_gram"):
        raise MessageInvalid("a covariance belongs to a solution, and there is none")
    return GlmRound(phase, message.k, message.first, message.count, solution, message.tie)


def encode_contribution(number: int, _: GlmRound, release: Release[Addend] | None) -> tuple[pb.Contribution, Blobs]:
    """A party's answer to round `number`; without an addend it only acknowledges."""
    message, blobs = pb.Contribution(round=number), deque[memoryview]()
    if release is not None:
        encode_addend(release, blobs, into=message.sum)
    return message, blobs


def decode_contribution(message: pb.Contribution, blobs: Blobs, release: Release[GlmRound]) -> Addend | None:
    """A party's part of the sum that a round asked for; None for an acknowledgement."""
    if message.HasField("sum") != release.content.summed:
        raise MessageInvalid(f"this is no answer to {release.content.phase}")
    return decode_addend(message.sum, blobs) if message.HasField("sum") else None


PROTOCOL = CrossingProtocol(
    "glm", GlmSpec, pb.Instruction, pb.Contribution, decode_instruction, CROSSINGS, statements, body="glm"
)
