"""What a party decodes of an instruction is checked before its role sees it."""

from collections import deque

import numpy as np
import pytest

from parley.privacy.release import OutcomeGate
from parley.protocols.bambi.codec import decode_instruction, encode_instruction
from parley.protocols.bambi.messages import CurvatureStep, LocalWork, Round, UpperForward
from parley.protocols.tensor.codec import MessageInvalid

ROWS = np.ones((3, 2), np.float32)


def crossed(outcome):
    message, blobs = encode_instruction(1, OutcomeGate(lambda _: True).release(Round(outcome, UpperForward(1))))
    return decode_instruction(message, deque(memoryview(bytes(blob)) for blob in blobs))[0]


def test_how_far_x_may_move_travels_with_the_finished_solution_alone():
    assert crossed(CurvatureStep(ROWS, 0.5, 0.1, ROWS, 0.25)).upper_scale == 0.25
    assert crossed(CurvatureStep(ROWS, 0.5, 0.1, None, 0.25)).upper_scale == 1.0


@pytest.mark.parametrize("scale", [0.0, -0.5, 1.5, float("nan"), float("inf")])
def test_a_scale_that_is_no_share_is_refused(scale):
    with pytest.raises(MessageInvalid, match="upper_scale"):
        crossed(CurvatureStep(ROWS, 0.5, 0.1, ROWS, scale))
    with pytest.raises(MessageInvalid, match="step_scale"):
        crossed(LocalWork(ROWS, np.zeros(3, np.uint8), 4, (), scale))
