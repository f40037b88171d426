"""Sets of more than 64 parties on the wire."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley.contracts.aggregation.v1 import aggregation_pb2 as pb
from parley.privacy.recovery import AskDisclosure
from parley.privacy.release import ClearRelayGate, bitmap
from parley.protocols.aggregation.party_sets import further_bits, low_bits, party_bits
from parley.protocols.recovery.codec import decode_step, encode_step
from parley.protocols.tensor.codec import MessageInvalid


@given(st.sets(st.integers(0, 1023)))
def test_a_set_comes_back_as_it_was(parties):
    bits = bitmap(parties)
    assert party_bits(low_bits(bits), further_bits(bits)) == bits


def test_up_to_64_parties_look_as_they_always_did():
    assert (low_bits(2**64 - 1), further_bits(2**64 - 1)) == (2**64 - 1, b"")


@pytest.mark.parametrize("further", [b"\1" * 121, b"\1\0", b"\0"])
def test_too_many_parties_or_a_second_spelling_are_refused(further):
    with pytest.raises(MessageInvalid):
        party_bits(0, further)


def test_survivors_beyond_64_reach_the_party():
    ask = AskDisclosure(3, frozenset({1, 63, 64, 999}))
    sent = encode_step(ClearRelayGate().release(ask)).SerializeToString()
    assert decode_step(pb.RecoveryStep.FromString(sent)) == ask
