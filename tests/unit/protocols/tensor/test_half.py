"""Arrays in half precision with one exponent: small and large ones keep their digits."""

from collections import deque

import numpy as np
import pytest

from parley.protocols.tensor.codec import MessageInvalid, decode_tensor, encode_tensor


def crossed(array, **changes):
    tensor = encode_tensor(array, deque(), half=True)
    for name, value in changes.items():
        setattr(tensor, name, value)
    return tensor, decode_tensor(tensor, deque(), name="field")


@pytest.mark.parametrize("size", [1e-30, 1e-8, 1.0, 1e6, 1e30])
def test_every_element_is_good_to_two_to_the_minus_eleven_whatever_the_size_of_all(size):
    array = (size * np.random.default_rng(0).standard_normal((50, 9))).astype(np.float32)
    tensor, found = crossed(array)
    assert len(tensor.data) == 2 * array.size
    assert np.abs(found - array).max() <= 2.0**-11 * np.abs(array).max()
    large = np.abs(array) > 1e-6 * size
    assert np.abs(found / array - 1)[large].max() <= 2.0**-11


def test_nothing_at_all_and_zeros_cross_as_they_are():
    assert crossed(np.zeros((3, 2), np.float32))[1].tolist() == [[0.0, 0.0]] * 3
    assert crossed(np.zeros((0, 2), np.float32))[1].shape == (0, 2)


def test_classes_are_not_rounded():
    tensor = encode_tensor(np.arange(5, dtype=np.uint8), deque(), half=True)
    assert tensor.exponent == 0
    assert decode_tensor(tensor, deque(), name="field", kinds="u").tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("exponent", [2000, -2000, 1090])
def test_an_exponent_that_leaves_no_finite_number_is_refused(exponent):
    with pytest.raises(MessageInvalid, match="field"):
        crossed(np.ones(3, np.float32), exponent=exponent)


def test_an_exponent_of_whole_precision_is_refused():
    tensor = encode_tensor(np.ones(3, np.float32), deque())
    tensor.exponent = 3
    with pytest.raises(MessageInvalid, match="half precision"):
        decode_tensor(tensor, deque(), name="field")
