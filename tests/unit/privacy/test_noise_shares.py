"""Shares of noise: exact on the ring's grid, together a Gaussian, and no record moves a sum further than it may."""

import math

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant

from parley.privacy.accounting import Composed, GaussianSum, online_epsilon
from parley.privacy.filters import filtered_epsilon
from parley.privacy.gaussian import DISTANCE
from parley.privacy.noise import WORD_RANGE, KeyedNoise
from parley.privacy.noise_shares import GridTooFine, NoiseShare, clipped, discrete_gaussian
from parley.privacy.ring import Ring

SHARE = NoiseShare(sensitivity=0.02, multiplier=3.0, honest=2)
KEYS = [KeyedNoise(bytes([party]) * 32) for party in range(3)]


def test_shares_of_the_honest_parties_make_up_the_noise():
    zero = np.zeros(40_000)
    total = sum(SHARE.noised(zero, key, "run", 0) for key in KEYS[: SHARE.honest])
    assert total.std() == pytest.approx(SHARE.sensitivity * SHARE.multiplier, rel=0.02)
    assert abs(total.mean()) < 4 * total.std() / math.sqrt(zero.size)


def test_the_ring_rounds_nothing_after_the_noise_was_added():
    value = SHARE.on_grid(np.random.default_rng(0).standard_normal(500))
    noised = SHARE.noised(value, KEYS[0], "run", 0)
    assert (noised / SHARE.step == np.rint(noised / SHARE.step)).all()
    np.testing.assert_array_equal(Ring.WIDE.decode(Ring.WIDE.encode(noised)), noised)
    SHARE.check(40)
    with pytest.raises(GridTooFine, match="ring_bits: 64"):
        SHARE.check(12)


def test_the_table_is_the_discrete_gaussian():
    sigma = SHARE.scale / SHARE.step
    noise = discrete_gaussian(sigma)
    k = np.arange(-noise.reach, noise.reach + 1, dtype=np.longdouble)
    exact = np.exp(-(k**2) / (2 * np.longdouble(sigma) ** 2))
    apart = np.abs(noise.masses.astype(np.longdouble) / WORD_RANGE - exact / exact.sum())
    assert 1024 <= sigma < 2048
    assert sum(noise.masses.tolist()) == WORD_RANGE
    assert float(apart.sum()) / 2 < DISTANCE


def test_replacing_a_record_moves_a_sum_by_twice_the_bound_at_most():
    draw = np.random.default_rng(1)
    records = draw.standard_normal((30, 6)) * 10.0 ** draw.uniform(-3, 3, (30, 1))
    bound = SHARE.sensitivity / 2
    whole = SHARE.summed(clipped(records, bound))
    for row, other in enumerate(-1e9 * records):
        changed = records.copy()
        changed[row] = other
        assert np.linalg.norm(SHARE.summed(clipped(changed, bound)) - whole) <= SHARE.sensitivity


def test_a_sum_that_is_made_again_has_the_same_noise_and_another_value_other_noise():
    value = SHARE.on_grid(np.ones(100))
    again = [SHARE.noised(value, KEYS[0], "run", 3) for _ in range(2)]
    np.testing.assert_array_equal(*again)
    moved = SHARE.noised(value + SHARE.step, KEYS[0], "run", 3) - SHARE.step
    assert (moved != again[0]).mean() > 0.9
    assert (SHARE.noised(value, KEYS[0], "run", 4) != again[0]).mean() > 0.9


@pytest.mark.parametrize("sums", [1, 10, 200])
def test_the_cost_is_what_dp_accounting_says_of_gaussian_noise(sums):
    theirs = RdpAccountant(orders=list(1 + np.geomspace(0.01, 1e5, 240)))
    theirs.compose(dp_event.GaussianDpEvent(SHARE.multiplier), sums)
    event = Composed(GaussianSum(1 / SHARE.multiplier), sums)
    assert online_epsilon(event, 1e-6) == pytest.approx(theirs.get_epsilon(1e-6), rel=1e-6)
    assert filtered_epsilon(event, 10.0, 1e-6) == online_epsilon(event, 1e-6)


def test_the_distance_of_the_tables_is_paid_out_of_delta():
    exact, drawn = (Composed(GaussianSum(0.25, distance), 20) for distance in (0.0, 1e-12))
    assert online_epsilon(exact, 1e-6) < online_epsilon(drawn, 1e-6) < 1.1 * online_epsilon(exact, 1e-6)
    assert online_epsilon(Composed(GaussianSum(0.25, 1e-6), 20), 1e-6) == math.inf
    assert filtered_epsilon(Composed(GaussianSum(0.25, 1e-6), 20), 10.0, 1e-6) == math.inf
