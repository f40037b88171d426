"""Sets of parties as bit maps of any length: the first 64 in a number, further ones in bytes."""

from parley.protocols.tensor.codec import MessageInvalid

MOST_PARTIES = 1024
_LOW = 64
_MASK = (1 << _LOW) - 1


def low_bits(parties: int) -> int:
    """The first 64 parties of a bit map."""
    return parties & _MASK


def further_bits(parties: int) -> bytes:
    """The others; empty where there are none."""
    rest = parties >> _LOW
    return rest.to_bytes((rest.bit_length() + 7) // 8, "little")


def party_bits(low: int, further: bytes) -> int:
    """The whole bit map. One set has one spelling, and no more parties than a run may have."""
    if len(further) > (MOST_PARTIES - _LOW) // 8 or further.endswith(b"\0"):
        raise MessageInvalid(f"a set of parties names at most {MOST_PARTIES}, with no zero byte at its end")
    return low | int.from_bytes(further, "little") << _LOW
