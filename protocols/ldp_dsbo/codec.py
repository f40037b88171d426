"""Noised states between neighbours as protos. Only releases are encoded."""

import numpy as np

from parley.contracts.decentralised.v1 import decentralised_pb2 as pb
from parley.privacy.ldp_states import NoisedState
from parley.privacy.release import Release
from parley.protocols.decentralised.codec import LARGEST_COUNT, Contribution, Instruction, decode_instruction
from parley.protocols.ldp_dsbo.crossings import CROSSINGS, statements
from parley.protocols.ldp_dsbo.settings import LdpDsboSpec
from parley.protocols.protocol import CrossingProtocol
from parley.protocols.tensor.codec import Blobs, MessageInvalid, decode_tensor, encode_tensor

PROTOCOL = CrossingProtocol(
    "ldp_dsbo",
    LdpDsboSpec,
    Instruction,
    Contribution,
    decode_instruction,
    CROSSINGS,
    statements,
    body="decentralised",
    peer_messages=(pb.NoisedState,),
)


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
