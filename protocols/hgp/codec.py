"""Push-Sum between neighbours as protos. Only releases are encoded."""

import math
from dataclasses import dataclass

import numpy as np

from parley.contracts.decentralised.v1 import decentralised_pb2 as pb
from parley.numerics.push_sum import Mass, RunningTotal
from parley.privacy.release import Portion, Release
from parley.protocols.decentralised.codec import LARGEST_COUNT, Contribution, Instruction, decode_instruction
from parley.protocols.hgp.crossings import CROSSINGS, statements
from parley.protocols.hgp.settings import HgpSpec
from parley.protocols.protocol import CrossingProtocol
from parley.protocols.tensor.codec import Blobs, MessageInvalid, decode_tensor, encode_tensor

PROTOCOL = CrossingProtocol(
    "hgp",
    HgpSpec,
    Instruction,
    Contribution,
    decode_instruction,
    CROSSINGS,
    statements,
    body="decentralised",
    peer_messages=(pb.PushSumVector,),
)


@dataclass(frozen=True)
class ReceivedPortion:
    """What a neighbour pushed at one step: a portion, or the running total of its edge."""

    step: int
    mass: Mass | None
    total: RunningTotal | None


def encode_push_sum(release: Release[Portion], blobs: Blobs) -> pb.PushSumVector:
    """A portion or a running total for one neighbour, in float64 whatever the model's precision is."""
    portion = release.content
    message = pb.PushSumVector(step=portion.step)
    if portion.total is None:
        message.omega = portion.mass.weight
        encode_tensor(portion.mass.z.astype(np.float64, copy=False), blobs, into=message.z)
        return message
    message.sequence, message.total_omega = portion.total.sequence, portion.total.mass.weight
    encode_tensor(portion.total.mass.z.astype(np.float64, copy=False), blobs, into=message.total_z)
    return message


def decode_push_sum(message: pb.PushSumVector, blobs: Blobs) -> ReceivedPortion:
    """What a neighbour pushed, checked."""
    if message.step > LARGEST_COUNT or message.sequence > LARGEST_COUNT:
        raise MessageInvalid(f"push_sum: step {message.step} or sequence {message.sequence} is out of range")
    if message.sequence:
        return ReceivedPortion(
            message.step, None, RunningTotal(_mass(message, "total_z", "total_omega", blobs), message.sequence)
        )
    return ReceivedPortion(message.step, _mass(message, "z", "omega", blobs), None)


def _mass(message: pb.PushSumVector, vector: str, weight: str, blobs: Blobs) -> Mass:
    omega = float(getattr(message, weight))
    if not (math.isfinite(omega) and omega > 0):
        raise MessageInvalid(f"push_sum.{weight}: a weight of {omega} is none of Push-Sum's")
    z = decode_tensor(getattr(message, vector), blobs, name=f"push_sum.{vector}", ndim=1)
    if z.dtype != np.float64:
        raise MessageInvalid(f"push_sum.{vector}: float64 is wanted, so that running totals stay exact")
    return Mass(z, omega)
