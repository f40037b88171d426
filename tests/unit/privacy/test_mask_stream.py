"""Mask streams: the right bytes, never the same ones."""

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from parley.privacy.mask_stream import MaskStream, RoundOutOfRange, mask, random_mask
from parley.privacy.ring import Ring

KEY = bytes(range(32))
RINGS = [Ring.WIDE, Ring.NARROW]


def block(number: int) -> bytes:
    """One keystream block from first principles: AES of the counter."""
    aes = Cipher(algorithms.AES(KEY), modes.ECB()).encryptor()  # noqa: S305 - the naive oracle for CTR
    return aes.update(number.to_bytes(16, "big"))


def test_the_stream_is_aes_of_round_and_block_number():
    stream = mask(KEY, 5, (6,), Ring.WIDE).tobytes()
    assert stream == b"".join(block((5 << 64) + i) for i in range(3))


@pytest.mark.parametrize("ring", RINGS, ids=["64", "32"])
def test_a_long_mask_begins_with_the_shorter_one(ring):
    long = mask(KEY, 1, (100_003,), ring)
    assert np.array_equal(long[:70_001], mask(KEY, 1, (70_001,), ring))


def test_rounds_and_keys_share_no_block():
    streams = [mask(KEY, r, (4096,), Ring.WIDE) for r in (0, 1, 2, 2**32, 2**64 - 1)]
    streams.append(mask(KEY[::-1], 0, (4096,), Ring.WIDE))
    everything = np.concatenate(streams)
    assert np.unique(everything).size == everything.size


@pytest.mark.parametrize("ring", RINGS, ids=["64", "32"])
def test_adding_and_taking_away_gives_the_input_back(ring):
    before = ring.encode(np.linspace(-9, 9, 40_000).reshape(4, -1))
    elements, stream = before.copy(), MaskStream(KEY)
    stream.add(elements, 9, ring)
    assert np.array_equal(elements, ring.add(before, mask(KEY, 9, before.shape, ring)))
    stream.add(elements, 9, ring, subtract=True)
    assert np.array_equal(elements, before)


def test_an_array_that_cannot_be_masked_in_place_is_refused():
    with pytest.raises(ValueError, match="contiguous"):
        MaskStream(KEY).add(np.zeros((4, 4), "<u8")[:, ::2], 0, Ring.WIDE)


@pytest.mark.parametrize("round_id", [-1, 2**64])
def test_a_round_id_beyond_eight_bytes_is_refused(round_id):
    with pytest.raises(RoundOutOfRange):
        mask(KEY, round_id, (1,), Ring.WIDE)


def test_a_short_key_is_refused():
    with pytest.raises(ValueError, match="32 bytes"):
        mask(b"short", 0, (1,), Ring.WIDE)


@pytest.mark.parametrize("ring", RINGS, ids=["64", "32"])
@pytest.mark.parametrize("shape", [(), (0,), (3, 5), (70_000,)])
def test_random_masks_have_their_shape_and_are_never_drawn_twice(ring, shape):
    first, second = random_mask(shape, ring), random_mask(shape, ring)
    assert first.shape == shape
    assert first.dtype == ring.dtype
    assert first.size == 0 or not np.array_equal(first, second)


@pytest.mark.parametrize("ring", RINGS, ids=["64", "32"])
def test_every_bit_of_a_mask_is_a_fair_coin(ring):
    # fixed key: deterministic. 5 sigma over 64 bits: false-alarm rate 4e-5 when the key was chosen.
    elements = mask(KEY, 77, (1 << 16,), ring)
    ones = np.unpackbits(elements.view(np.uint8).reshape(-1, ring.bits // 8), axis=1).mean(axis=0)
    assert np.max(np.abs(ones - 0.5)) < 5 * 0.5 / 2**8
