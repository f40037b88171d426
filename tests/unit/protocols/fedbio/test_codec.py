from collections import deque

import numpy as np
import pytest

from parley.contracts.fedbio.v1 import fedbio_pb2 as pb
from parley.privacy.release import ClearProtection, OutcomeGate, SumGate
from parley.protocols.fedbio.codec import (
    decode_contribution,
    decode_instruction,
    encode_contribution,
    encode_instruction,
)
from parley.protocols.fedbio.messages import AveragingRound
from parley.protocols.tensor.codec import MessageInvalid

PHASES = ("variables", "momenta", "evaluate", "checkpoint", "finish")


def released(draft):
    return OutcomeGate(lambda _: False).release(draft)


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("mean", [None, np.array([1.5, -2.0, 1e-9])])
def test_an_instruction_arrives_as_it_was_sent(phase, mean):
    sent = AveragingRound(phase, 12, (0, 3, 63), mean)
    got = decode_instruction(*encode_instruction(5, released(sent), "float64"))
    assert (got.phase, got.k, got.participants) == (phase, 12, (0, 3, 63))
    assert (got.mean is None) == (mean is None)
    if mean is not None:
        np.testing.assert_array_equal(got.mean, mean)


def test_an_average_travels_in_the_runs_precision():
    message, _ = encode_instruction(1, released(AveragingRound("momenta", 0, (0,), np.array([0.1]))), "float32")
    assert len(message.mean.data) == 4


def test_an_unknown_phase_is_refused():
    with pytest.raises(MessageInvalid, match="unknown"):
        decode_instruction(pb.Instruction(round=1, phase=99, participants=1), deque())
    with pytest.raises(MessageInvalid):
        decode_instruction(pb.Instruction(round=1, participants=1), deque())


@pytest.mark.parametrize("phase", PHASES)
def test_an_answer_is_taken_for_its_own_phase_only(phase):
    asked = AveragingRound(phase, 1, (0, 1))
    release = SumGate(ClearProtection(2)).release(1, np.ones(3)) if asked.summed else None
    message, blobs = encode_contribution(9, asked, release)
    assert message.round == 9
    addend = decode_contribution(message, blobs, asked)
    assert (addend is not None) == asked.summed
    for other in PHASES:
        same_kind = {"checkpoint", "finish"} >= {phase, other}
        if other != phase and not same_kind:
            with pytest.raises(MessageInvalid, match=other):
                decode_contribution(message, blobs, AveragingRound(other, 1, (0, 1)))


def test_a_mean_that_is_not_finite_is_refused():
    message, blobs = encode_instruction(
        1, released(AveragingRound("variables", 1, (0,), np.array([1.0, np.nan]))), "float64"
    )
    with pytest.raises(MessageInvalid, match="finite"):
        decode_instruction(message, blobs)
