"""Sums over some of a run's parties: opened over exactly those, or not at all."""

import numpy as np
import pytest

from parley.privacy.aggregation import Pairwise, SumOpening, SumRefused, ring_of
from parley.privacy.pairwise import NotAParticipant
from parley.privacy.release import Addend, ClearProtection, SumGate, bitmap
from parley.privacy.trees import TooFewParties
from parley.spec.protection import AggregationSpec

PARTIES = 5
SETTINGS = AggregationSpec(kind="pairwise", minimum_parties=2)


def maskers(minimum=2):
    keys = {frozenset((i, j)): bytes([i, j] * 16) for i in range(PARTIES) for j in range(i)}
    return [
        Pairwise(i, {j: keys[frozenset((i, j))] for j in range(PARTIES) if j != i}, ring_of(SETTINGS), minimum)
        for i in range(PARTIES)
    ]


def values(party):
    return np.arange(4.0) * (party + 1)


def test_masks_over_the_participants_cancel_in_their_sum():
    protect, chosen = maskers(), (0, 2, 3)
    addends = [protect[i].protect(7, values(i), frozenset(chosen)) for i in chosen]
    total = SumOpening(SETTINGS, PARTIES).open(addends, chosen)
    np.testing.assert_allclose(total, sum(values(i) for i in chosen), atol=1e-9)


def test_an_addend_alone_says_nothing_of_its_value():
    addend = maskers()[2].protect(7, values(2), frozenset({0, 2, 3}))
    seen = ring_of(SETTINGS).decode(addend.masked)[: values(2).size]
    assert np.abs(seen - values(2)).min() > 1


def test_participants_who_name_different_sets_open_nothing():
    protect = maskers()
    addends = [protect[0].protect(1, values(0), frozenset({0, 2})), protect[2].protect(1, values(2), frozenset({2, 3}))]
    with pytest.raises(SumRefused, match="other parties"):
        SumOpening(SETTINGS, PARTIES).open(addends, (0, 2))


def test_a_missing_participant_opens_nothing():
    addend = maskers()[0].protect(1, values(0), frozenset({0, 2}))
    with pytest.raises(SumRefused):
        SumOpening(SETTINGS, PARTIES).open([addend], (0, 2))


def test_a_party_masks_no_sum_below_its_minimum_and_none_that_it_is_not_in():
    masker = maskers(minimum=3)[1]
    with pytest.raises(TooFewParties):
        masker.protect(1, values(1), frozenset({0, 1}))
    with pytest.raises(NotAParticipant):
        masker.protect(2, values(1), frozenset({0, 2, 3}))


def test_the_coordinator_opens_no_sum_below_the_minimum():
    clear = ClearProtection(PARTIES).protect(1, values(0), frozenset({0}))
    with pytest.raises(SumRefused, match="below the run's minimum of 2"):
        SumOpening(AggregationSpec(kind="plain"), PARTIES).open([clear], (0,))


def test_two_trees_refuse_a_sample():
    addends = [Addend(bitmap((0, 1, 2))) for _ in range(3)]
    with pytest.raises(SumRefused, match="pairwise"):
        SumOpening(AggregationSpec(kind="two_tree"), PARTIES).open(addends, (0, 1, 2))


def test_without_names_everyone_takes_part():
    gates = [SumGate(protection) for protection in maskers()]
    addends = [gate.release(3, values(i)).content for i, gate in enumerate(gates)]
    total = SumOpening(SETTINGS, PARTIES).open(addends)
    np.testing.assert_allclose(total, sum(map(values, range(PARTIES))), atol=1e-9)
