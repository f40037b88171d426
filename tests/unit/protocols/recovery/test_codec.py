"""Steps of recoverable sums as protos: they arrive as sent, or are refused by name."""

from collections import deque

import pytest

from parley.contracts.aggregation.v1 import aggregation_pb2 as sums_pb
from parley.contracts.fedbio.v1 import fedbio_pb2 as pb
from parley.privacy.dropout import SEALED_BYTES
from parley.privacy.recovery import AskDisclosure, AskKey, AskShares, AskValues, RecoverableSums
from parley.privacy.release import ClearRelayGate, OutcomeGate, RecoveryGate
from parley.privacy.ring import Ring
from parley.protocols.fedbio.codec import (
    decode_instruction,
    decode_step_answer,
    encode_contribution,
    encode_instruction,
)
from parley.protocols.fedbio.messages import AveragingRound
from parley.protocols.recovery.codec import decode_settlement, decode_step, encode_step
from parley.protocols.tensor.codec import MessageInvalid

STEPS = [
    AskKey(),
    AskShares(3, {0: bytes(32), 2: b"k" * 32}),
    AskValues(3, {1: b"s" * SEALED_BYTES, 63: bytes(SEALED_BYTES)}),
    AskDisclosure(3, frozenset({0, 1, 63})),
]


@pytest.mark.parametrize("step", STEPS, ids=lambda step: type(step).__name__)
def test_a_step_arrives_as_it_was_sent(step):
    message, blobs = encode_instruction(
        4, OutcomeGate(lambda _: False).release(AveragingRound("momenta", 2, (0, 1))), "float64"
    )
    message.recovery.CopyFrom(encode_step(ClearRelayGate().release(step)))
    assert decode_instruction(pb.Instruction.FromString(message.SerializeToString()), blobs).step == step


def test_an_instruction_without_recovery_has_not_changed():
    message, _ = encode_instruction(
        4, OutcomeGate(lambda _: False).release(AveragingRound("momenta", 2, (0, 1))), "float64"
    )
    assert message.SerializeToString().hex() == "08041002" + "1802" + "2003"


def test_a_round_key_answers_the_step_that_asked_for_it_and_no_other():
    gate = RecoveryGate(RecoverableSums(1, "s", {0: "a", 1: "b"}, {0: bytes(32)}, Ring.WIDE, lambda n: n))
    asked = AveragingRound("variables", 0, (0, 1), step=AskKey())
    message, _ = encode_contribution(9, asked, gate.offer())
    assert decode_step_answer(message, AskKey(), 1).party == 1
    for step in STEPS[1:]:
        with pytest.raises(MessageInvalid, match="cannot be answered with round_key"):
            decode_step_answer(message, step, 1)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (sums_pb.RecoveryStep(sum_id=1), "a step asks for"),
        (sums_pb.RecoveryStep(shares={"keys": [{"party": 0, "public_key": b"short"}]}), "5 bytes came, 32"),
        (sums_pb.RecoveryStep(shares={"keys": [{"party": 1, "public_key": bytes(32)}] * 2}), "named twice"),
        (sums_pb.RecoveryStep(values={"shares": [{"party": 1024, "sealed": bytes(SEALED_BYTES)}]}), "none of 1024"),
        (sums_pb.RecoveryStep(values={"shares": [{"party": 1, "sealed": bytes(9)}]}), "9 bytes came"),
    ],
)
def test_a_malformed_step_is_refused(message, reason):
    with pytest.raises(MessageInvalid, match=reason):
        decode_step(message)
    instruction = pb.Instruction(round=1, phase=pb.PHASE_VARIABLES, participants=3, recovery=message)
    with pytest.raises(MessageInvalid, match=reason):
        decode_instruction(instruction, deque())


def test_a_disclosed_share_beyond_the_prime_is_refused():
    message = sums_pb.Disclosure(seeds=[{"party": 0, "share": b"\xff" * 33}], next_key=bytes(32))
    with pytest.raises(MessageInvalid, match="below the prime"):
        decode_settlement(message, 2)
    with pytest.raises(MessageInvalid, match="next_key"):
        decode_settlement(sums_pb.Disclosure(), 2)
