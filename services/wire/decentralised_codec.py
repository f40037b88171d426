"""Decentralised runs as protos: the clock's stretches, and vectors between neighbours. Only releases are encoded."""

import math
from collections import deque
from dataclasses import dataclass

import numpy as np

from parley.contracts.decentralised.v1 import decentralised_pb2 as pb
from parley.numerics.push_sum import Mass, RunningTotal
from parley.privacy.decentralised_rounds import PeerTraffic, Phase, Stretch
from parley.privacy.ldp_states import NoisedState
from parley.privacy.release import Addend, Portion, Release
from parley.services.wire.sum_codec import decode_addend, encode_addend, named
from parley.services.wire.tensors import Blobs, MessageInvalid, decode_tensor, encode_tensor

_PHASES: dict[Phase, pb.Phase.ValueType] = {
    "train": pb.PHASE_TRAIN,
    "hyper_gradient": pb.PHASE_HYPER_GRADIENT,
    "agent_steps": pb.PHASE_AGENT_STEPS,
    "evaluate": pb.PHASE_EVALUATE,
    "checkpoint": pb.PHASE_CHECKPOINT,
    "finish": pb.PHASE_FINISH,
}
LARGEST_COUNT = 1 << 40


def encode_instruction(number: int, release: Release[Stretch]) -> tuple[pb.Instruction, Blobs]:
    """The instruction of round `number`."""
    asked = release.content
    message = pb.Instruction(round=number, phase=_PHASES[asked.phase], k=asked.k, first=asked.first, last=asked.last)
    return message, deque()


def decode_instruction(message: pb.Instruction) -> Stretch:
    """What the clock asks."""
    if max(message.k, message.first, message.last) > LARGEST_COUNT or message.first > message.last:
        raise MessageInvalid(f"steps {message.first} to {message.last} of iteration {message.k} are out of range")
    return Stretch(named(_PHASES, message.phase), message.k, message.first, message.last)


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


def decode_contribution(message: pb.Contribution, blobs: Blobs, asked: Stretch) -> tuple[Addend | None, PeerTraffic]:
    """What a party adds to the sum of an evaluation (None for an acknowledgement), and its traffic."""
    share = message.WhichOneof("share")
    if share != ("measures" if asked.summed else "acknowledgement"):
        raise MessageInvalid(f"phase {asked.phase} cannot be answered with {share}")
    traffic = PeerTraffic(message.party, message.peer_messages, message.peer_bytes)
    return decode_addend(message.measures.sum, blobs) if share == "measures" else None, traffic


@dataclass(frozen=True)
class ReceivedPortion:
    """What a neighbour pushed at one step: a portion, or the running total of its edge."""

    step: int
    mass: Mass | None
    total: RunningTotal | None


def encode_push_sum(release: Release[Portion], blobs: Blobs) -> pb.PushSumVector:
    """A portion or a running total for one neighbour, in float64 whatever the model's precision is."""
    portion = release.content
    if portion.total is None:
        return pb.PushSumVector(
            step=portion.step, z=encode_tensor(portion.mass.z.astype(np.float64), blobs), omega=portion.mass.weight
        )
    return pb.PushSumVector(
        step=portion.step,
        sequence=portion.total.sequence,
        total_z=encode_tensor(portion.total.mass.z.astype(np.float64), blobs),
        total_omega=portion.total.mass.weight,
    )


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


def encode_noised_state(release: Release[NoisedState], blobs: Blobs) -> pb.NoisedState:
    """An agent's state as its neighbours get it."""
    state = release.content
    message = pb.NoisedState(step=state.step)
    for name in ("noised_x", "noised_y", "noised_z"):  # in field order, as chunks follow
        encode_tensor(getattr(state, name), blobs, into=getattr(message, name))
    return message


def decode_noised_state(message: pb.NoisedState, blobs: Blobs) -> NoisedState:
    """A neighbour's state."""
    if message.step > LARGEST_COUNT:
        raise MessageInvalid(f"noised_state: step {message.step} is out of range")
    x, y, z = (
        decode_tensor(getattr(message, name), blobs, name=name, ndim=1).astype(np.float64)
        for name in ("noised_x", "noised_y", "noised_z")
    )
    return NoisedState(x, y, z, message.step)
