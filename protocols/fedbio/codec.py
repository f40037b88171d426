"""The FedBiO family's phases as protos. Only releases are encoded; what is decoded is checked before a role sees it."""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from parley.contracts.fedbio.v1 import fedbio_pb2 as pb
from parley.privacy.recovery import AskDisclosure, AskKey, AskShares, KeyOffer, RecoveryStep, Settlement, ShareBundle
from parley.privacy.release import Addend, Release, bitmap, members
from parley.protocols.aggregation.codec import decode_addend, encode_addend, enum_codes, named
from parley.protocols.aggregation.party_sets import further_bits, low_bits, party_bits
from parley.protocols.fedbio.crossings import CROSSINGS, statements
from parley.protocols.fedbio.messages import AveragingRound, Phase
from parley.protocols.fedbio.settings import FedbioSpec
from parley.protocols.protocol import CrossingProtocol, RecoveryCodec, SettledSum
from parley.protocols.recovery.codec import (
    decode_bundle,
    decode_offer,
    decode_settlement,
    decode_step,
    encode_bundle,
    encode_offer,
    encode_settlement,
)
from parley.protocols.tensor.codec import Blobs, MessageInvalid, decode_tensor, encode_tensor

_PHASES: dict[Phase, pb.Phase.ValueType] = enum_codes(pb.Phase.DESCRIPTOR)
LARGEST_COUNT = 1 << 40


def encode_instruction(number: int, release: Release[AveragingRound], dtype: str) -> tuple[pb.Instruction, Blobs]:
    """The instruction of phase `number`; the average travels as `dtype`."""
    blobs: Blobs = deque()
    draft = release.content
    bits = bitmap(draft.participants)
    message = pb.Instruction(
        round=number,
        phase=_PHASES[draft.phase],
        k=draft.k,
        participants=low_bits(bits),
        further_participants=further_bits(bits),
    )
    if draft.mean is not None:
        encode_tensor(draft.mean.astype(dtype), blobs, into=message.mean)
    return message, blobs


def decode_instruction(message: pb.Instruction, blobs: Blobs) -> AveragingRound:
    """What a phase asks of its participants."""
    if message.k > LARGEST_COUNT:
        raise MessageInvalid(f"k: a count of {message.k} is out of range")
    mean = None
    if message.HasField("mean"):
        mean = decode_tensor(message.mean, blobs, name="mean", ndim=1).astype(np.float64)
    present = members(party_bits(message.participants, message.further_participants))
    step = decode_step(message.recovery) if message.HasField("recovery") else None
    return AveragingRound(named(_PHASES, message.phase), message.k, present, mean, step)


def encode_contribution(
    number: int, instruction: AveragingRound, release: Release[Any] | None
) -> tuple[pb.Contribution, Blobs]:
    """A party's answer to phase `number`, or to a step of its sum; without a release it only acknowledges."""
    blobs: Blobs = deque()
    message = pb.Contribution(round=number)
    if release is None:
        message.acknowledgement.SetInParent()
        return message, blobs
    match instruction.step:
        case AskKey():
            message.round_key.CopyFrom(encode_offer(release))
            return message, blobs
        case AskShares():
            message.shares.CopyFrom(encode_bundle(release))
            return message, blobs
        case AskDisclosure():
            message.disclosure.CopyFrom(encode_settlement(release))
            return message, blobs
    if instruction.phase == "evaluate":
        encode_addend(release, blobs, into=message.measures.sum)
    else:
        message.state.phase = _PHASES[instruction.phase]
        encode_addend(release, blobs, into=message.state.sum)
    return message, blobs


def decode_contribution(message: pb.Contribution, blobs: Blobs, asked: AveragingRound) -> Addend | None:
    """What a party adds to the sum of a phase; None for an acknowledgement."""
    share = message.WhichOneof("share")
    wanted = "measures" if asked.phase == "evaluate" else "state" if asked.summed else "acknowledgement"
    if share != wanted or (share == "state" and message.state.phase != _PHASES[asked.phase]):
        raise MessageInvalid(f"phase {asked.phase} cannot be answered with {share}")
    if share == "acknowledgement":
        return None
    return decode_addend(message.measures.sum if share == "measures" else message.state.sum, blobs)


def decode_step_answer(message: pb.Contribution, step: RecoveryStep, party: int) -> KeyOffer | ShareBundle | Settlement:
    """What party `party` answers to a step of a sum before or after its value."""
    share = message.WhichOneof("share")
    match step, share:
        case AskKey(), "round_key":
            return decode_offer(message.round_key)
        case AskShares(), "shares":
            return decode_bundle(message.shares)
        case AskDisclosure(), "disclosure":
            return decode_settlement(message.disclosure, party)
    raise MessageInvalid(f"{type(step).__name__} cannot be answered with {share}")


def encode_settled(sums: Iterable[SettledSum]) -> list[pb.SettledSum]:
    """Sums that a party has helped to open: phase, round and bitmap of participants."""
    codes = {str(phase): code for phase, code in _PHASES.items()}
    return [
        pb.SettledSum(phase=codes[phase], k=k, participants=low_bits(whom), further_participants=further_bits(whom))
        for phase, k, whom in sums
    ]


def decode_settled(messages: Iterable[pb.SettledSum]) -> Iterator[SettledSum]:
    """Phase, round and participants of sums that a party has helped to open."""
    for message in messages:
        whom = party_bits(message.participants, message.further_participants)
        yield named(_PHASES, message.phase), message.k, whom


PROTOCOL = CrossingProtocol(
    "fedbio",
    FedbioSpec,
    pb.Instruction,
    pb.Contribution,
    decode_instruction,
    CROSSINGS,
    statements,
    body="fedbio",
    recovery=RecoveryCodec(tuple(_PHASES), encode_settled, decode_settled, decode_step_answer),
)
