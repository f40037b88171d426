"""Masks are bound to what two parties were both told."""

import numpy as np
import pytest

from parley.privacy.aggregation import Pairwise, SumOpening, ring_of
from parley.privacy.pairwise import SumDoesNotOpen, with_check, without_check
from parley.privacy.ring import Ring
from parley.privacy.transcript import Transcript, digest_of
from parley.simulation.sums import pair_secrets
from parley.spec.protection import AggregationSpec

PARTIES = 4
CONSENT = bytes(32)
SETTINGS = AggregationSpec()


def transcripts():
    return [Transcript(CONSENT, index, PARTIES) for index in range(PARTIES)]


def tell(everyone, number, instructions, participants=None):
    """Every participant reads its instruction, and keeps it."""
    for index, instruction in instructions.items():
        everyone[index].read(number, digest_of(instruction, ()), participants)
        everyone[index].keep()


def agree(everyone, one, other):
    return everyone[one].heads[other] == everyone[other].heads[one]


def total(everyone, number, chosen, settings=SETTINGS):
    shared = pair_secrets(PARTIES)
    addends = []
    for index in chosen:
        masks = Pairwise(index, shared[index]("mask"), ring_of(settings), 2)
        addends.append(masks.protect(number, np.full(3, 1.0 + index), frozenset(chosen), everyone[index].heads))
    return SumOpening(settings, PARTIES).open(addends, chosen)


def test_parties_that_were_told_the_same_open_their_sum():
    everyone = transcripts()
    tell(everyone, 1, dict.fromkeys(range(PARTIES), b"same"))
    np.testing.assert_allclose(total(everyone, 1, range(PARTIES)), np.full(3, 10.0))


@pytest.mark.parametrize("bits", [64, 32])
def test_one_that_was_told_something_else_once_is_in_no_sum_that_opens_again(bits):
    everyone, settings = transcripts(), AggregationSpec(ring_bits=bits)
    tell(everyone, 1, dict.fromkeys(range(PARTIES - 1), b"same") | {PARTIES - 1: b"other"})
    tell(everyone, 2, dict.fromkeys(range(PARTIES), b"same again"))
    with pytest.raises(SumDoesNotOpen):
        total(everyone, 2, range(PARTIES), settings)
    np.testing.assert_allclose(total(everyone, 2, (0, 1, 2), settings), np.full(3, 6.0), atol=1e-3)


def test_a_party_that_sat_out_is_told_nothing_and_misses_nothing():
    everyone = transcripts()
    tell(everyone, 1, dict.fromkeys((0, 1), b"for two"), (0, 1))
    tell(everyone, 2, dict.fromkeys((1, 2, 3), b"for three"), (1, 2, 3))
    tell(everyone, 3, dict.fromkeys(range(PARTIES), b"for all"))
    assert all(agree(everyone, one, other) for one in range(PARTIES) for other in range(one))
    np.testing.assert_allclose(total(everyone, 3, range(PARTIES)), np.full(3, 10.0))


def test_the_number_of_a_round_and_its_participants_count():
    everyone = transcripts()
    tell(everyone, 1, {0: b"same"})
    tell(everyone, 2, {1: b"same"})
    assert not agree(everyone, 0, 1)
    assert agree(everyone, 2, 3)


def test_a_round_that_was_not_kept_leaves_no_trace():
    everyone = transcripts()
    before = everyone[0].heads
    everyone[0].read(1, digest_of(b"refused", ()), None)
    assert everyone[0].heads == before
    tell(everyone, 1, dict.fromkeys(range(PARTIES), b"same"))
    assert agree(everyone, 0, 1)


def test_where_a_message_ends_and_a_tensor_begins_is_part_of_the_digest():
    found = {
        digest_of(b"ab", ()),
        digest_of(b"a", (b"b",)),
        digest_of(b"", (b"ab",)),
        digest_of(b"", (b"a", b"b")),
        digest_of(b"ab", (b"",)),
    }
    assert len(found) == 5


@pytest.mark.parametrize("ring", [Ring.WIDE, Ring.NARROW])
def test_zeros_after_a_sum_show_that_it_opened(ring):
    encoded = ring.encode(np.array([1.0, -2.0]))
    longer = with_check(encoded, ring)
    assert longer.nbytes == encoded.nbytes + 8
    assert np.array_equal(without_check(longer, ring), encoded)
    for place in range(encoded.size, longer.size):
        changed = longer.copy()
        changed[place] = 1
        with pytest.raises(SumDoesNotOpen):
            without_check(changed, ring)
    with pytest.raises(SumDoesNotOpen):
        without_check(longer[:0], ring)
