"""The fixed-point ring: exact sums, loud refusals."""

import numpy as np
import pytest

from parley.privacy.ring import NotRingElements, Ring, RingMisconfigured, RingTooSmall, ValueNotFinite, ValueOutOfRange

RINGS = [Ring.WIDE, Ring.NARROW]


@pytest.mark.parametrize("ring", RINGS, ids=["64", "32"])
def test_a_value_comes_back_within_half_a_step(ring):
    values = np.random.default_rng(1).uniform(-1000, 1000, 5000)
    back = ring.decode(ring.encode(values))
    assert np.max(np.abs(back - values)) <= 2.0 ** -(ring.fraction_bits + 1)


@pytest.mark.parametrize("ring", RINGS, ids=["64", "32"])
def test_the_limit_itself_is_accepted_with_both_signs_and_nothing_beyond_it(ring):
    edge = np.array([ring.limit, -ring.limit], dtype=np.float64)
    assert np.array_equal(ring.decode(ring.encode(edge)), edge)
    with pytest.raises(ValueOutOfRange):
        ring.encode(np.nextafter(edge, 2 * edge))


def test_an_encoding_is_twos_complement():
    ring = Ring(bits=32, fraction_bits=4, limit=100)
    assert ring.encode(np.array([1.0, -1.0, 0.5, -0.03125])).tolist() == [16, 2**32 - 16, 8, 0]


def test_halves_round_to_even_so_that_rounding_has_no_drift():
    ring = Ring(bits=64, fraction_bits=0, limit=10)
    assert ring.decode(ring.encode(np.array([0.5, 1.5, 2.5, -0.5, -1.5]))).tolist() == [0, 2, 2, 0, -2]


def test_float32_values_are_scaled_in_double_precision():
    values = np.array([1 / 3, -1e-7], dtype=np.float32)
    assert np.array_equal(Ring.WIDE.encode(values), Ring.WIDE.encode(values.astype(np.float64)))


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (2, 3, 4)])
def test_shape_is_kept(shape):
    encoded = Ring.WIDE.encode(np.ones(shape))
    assert encoded.shape == shape
    assert Ring.WIDE.decode(encoded).shape == shape


def test_encoding_leaves_its_input_alone_and_takes_strided_views():
    values = np.arange(12.0).reshape(3, 4)
    encoded = Ring.WIDE.encode(values[:, ::2])
    assert np.array_equal(values, np.arange(12.0).reshape(3, 4))
    assert np.array_equal(Ring.WIDE.decode(encoded), values[:, ::2])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("position", [0, 500, 999])
def test_nan_and_infinity_are_refused_wherever_they_stand(bad, position):
    values = np.zeros(1000)
    values[position] = bad
    with pytest.raises(ValueNotFinite):
        Ring.WIDE.encode(values)


def test_a_value_out_of_range_says_by_how_much_and_which_fields_to_change():
    with pytest.raises(ValueOutOfRange, match=r"limit 1024 by 476 .*raise `limit`.*`fraction_bits`") as refusal:
        Ring.NARROW.encode(np.array([3.0, -1500.0]))
    assert refusal.value.magnitude == 1500.0


@pytest.mark.parametrize(("ring", "most"), [(Ring.WIDE, 127), (Ring.NARROW, 31)], ids=["64", "32"])
def test_the_number_of_parties_is_bounded_by_what_cannot_wrap(ring, most):
    ring.check(most)
    assert ring.most_parties == most
    with pytest.raises(RingTooSmall, match=f"at most {most} parties"):
        ring.check(most + 1)


@pytest.mark.parametrize("ring", RINGS, ids=["64", "32"])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_allowed_sum_does_not_wrap(ring, sign):
    encoded = ring.encode(np.array([sign * float(ring.limit)]))
    total = encoded
    for _ in range(ring.most_parties - 1):
        total = ring.add(total, encoded)
    assert ring.decode(total)[0] == sign * ring.limit * ring.most_parties


@pytest.mark.parametrize(
    ("bits", "fraction_bits", "limit"),
    [
        (8, 4, 1),
        (64, -1, 10),
        (64, 40, 0),
        (64, 40, float("nan")),
        (64, 40, float("inf")),
        (64, 63, 1),
        (32, 30, 2),
    ],
)
def test_a_ring_that_cannot_hold_one_value_is_refused(bits, fraction_bits, limit):
    with pytest.raises((RingMisconfigured, RingTooSmall)):
        Ring(bits, fraction_bits, limit)


def test_a_limit_need_not_be_a_whole_number():
    ring = Ring(bits=32, fraction_bits=28, limit=1.5)
    assert ring.most_parties == 5
    assert ring.decode(ring.encode(np.array([-1.5]))) == -1.5
    with pytest.raises(ValueOutOfRange):
        ring.encode(np.array([1.5000001]))


def test_elements_of_another_ring_are_refused():
    with pytest.raises(NotRingElements):
        Ring.WIDE.decode(Ring.NARROW.encode(np.ones(2)))
    with pytest.raises(NotRingElements):
        Ring.WIDE.add(Ring.WIDE.encode(np.ones(2)), np.ones(2, dtype=np.int64))


@pytest.mark.parametrize("bits", [64, 32])
@pytest.mark.parametrize("value", [2.0**30, -(2.0**30), np.nan, np.inf])
def test_a_spoilt_value_keeps_a_sum_from_opening_whatever_the_others_add(bits, value):
    ring = Ring(bits, 16 if bits == 32 else 40, 1 << 10, "spoil")
    honest = ring.encode(np.full(64, 1000.0))
    spoilt = ring.encode(np.full(64, value))
    for total in (spoilt + honest + honest, spoilt - honest - honest):
        for element in ring.decode(total):
            assert not ring.opens(np.array([element]), 3)
    assert ring.opens(ring.decode(honest + honest + honest), 3)


def test_a_spoilt_value_holds_nothing_of_the_value():
    ring = Ring(64, 40, 1 << 10, "spoil")
    first, second = ring.encode(np.array([2.0**30])), ring.encode(np.array([2.0**30]))
    assert first != second


def test_a_clipped_value_is_the_limit_and_what_is_not_finite_still_spoils():
    ring = Ring(64, 40, 1 << 10, "clip")
    assert ring.decode(ring.encode(np.array([5000.0, -5000.0, 3.0]))).tolist() == [1024.0, -1024.0, 3.0]
    assert not ring.opens(ring.decode(ring.encode(np.array([np.nan]))), 1)


def test_a_ring_of_16_bits_rounds_up_or_down_so_that_errors_average_out():
    ring, values = Ring(16, 7, 32.0), np.full(40_000, 1.3 / 128)
    found = ring.decode(ring.encode(values))
    assert set(found) == {1 / 128, 2 / 128}
    assert abs(found.mean() - values[0]) < 5 * found.std() / np.sqrt(found.size)  # false alarm below 1e-6
    assert np.abs(found - values).max() <= ring.error_bound(1)


def test_rounding_at_random_is_the_same_for_the_same_values_and_another_for_others():
    ring, values = Ring(16, 7, 32.0), np.random.default_rng(0).normal(size=200)
    assert (ring.encode(values) == ring.encode(values.copy())).all()
    moved = values + np.append(np.zeros(199), 1e-6)
    assert (ring.encode(moved) != ring.encode(values)).sum() > 20


def test_the_limit_of_a_ring_of_16_bits_is_never_rounded_beyond_it():
    ring = Ring(16, 7, 31.999)
    assert np.abs(ring.decode(ring.encode(np.array([31.999, -31.999] * 500)))).max() <= 32.0
