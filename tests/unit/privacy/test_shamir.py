"""Shamir sharing: t shares give the secret, t − 1 give nothing, a wrong one is noticed."""

import random
from itertools import combinations

import pytest

from parley.privacy.shamir import (
    PRIME,
    NotEnoughShares,
    Share,
    SharesInconsistent,
    ThresholdImpossible,
    combine,
    split,
)

SECRET = bytes(range(32))


def is_probably_prime(n: int) -> bool:
    """Miller–Rabin; 40 rounds err with probability below 1e-24."""
    twos = ((n - 1) & -(n - 1)).bit_length() - 1
    odd = (n - 1) >> twos
    rng = random.Random(0)
    for _ in range(40):
        power = pow(rng.randrange(2, n - 1), odd, n)
        if power in (1, n - 1):
            continue
        for _ in range(twos - 1):
            power = power * power % n
            if power == n - 1:
                break
        else:
            return False
    return True


def test_the_modulus_is_the_smallest_prime_above_any_32_bytes():
    assert is_probably_prime(PRIME)
    assert not any(is_probably_prime(n) for n in range(2**256 + 1, PRIME, 2))


@pytest.mark.parametrize("secret", [SECRET, bytes(32), b"\xff" * 32], ids=["any", "zero", "largest"])
def test_any_t_shares_give_the_secret(secret):
    shares = split(secret, 3, range(1, 6))
    for chosen in combinations(shares, 3):
        assert combine({point: shares[point] for point in chosen}, 3) == secret
    assert combine(shares, 3) == secret


def test_fewer_than_t_shares_are_refused():
    shares = split(SECRET, 3, range(1, 6))
    with pytest.raises(NotEnoughShares, match="2 shares of 3"):
        combine({point: shares[point] for point in (1, 2)}, 3)


def test_fewer_than_t_shares_fit_every_secret():
    # with t − 1 shares fixed, each candidate secret has exactly one polynomial: nothing can be ruled out
    shares = split(SECRET, 3, range(1, 6))
    held = {point: shares[point] for point in (1, 2)}
    for candidate in (0, 1, 2**255, PRIME - 1):
        third = [Share(0, candidate), *held.values()]
        value = sum(
            s.value * pow((s.point - o.point) * (s.point - p.point), -1, PRIME) * (5 - o.point) * (5 - p.point)
            for s, o, p in [(third[i], third[i - 1], third[i - 2]) for i in range(3)]
        )
        forged = {**held, 5: Share(5, value % PRIME)}
        if candidate < 2**256:
            assert combine(forged, 3) == candidate.to_bytes(32, "big")


def test_sharing_the_same_secret_twice_gives_other_shares():
    assert split(SECRET, 2, [1, 2]) != split(SECRET, 2, [1, 2])


def test_a_wrong_share_beyond_the_threshold_is_noticed():
    shares = split(SECRET, 2, [1, 2, 3])
    with pytest.raises(SharesInconsistent):
        combine({**shares, 3: Share(3, (shares[3].value + 1) % PRIME)}, 2)


def test_a_share_survives_its_bytes():
    share = split(SECRET, 2, [1, 2])[2]
    assert Share.from_bytes(2, share.to_bytes()) == share


@pytest.mark.parametrize("value", [b"", b"\xff" * 33, bytes(32)], ids=["empty", "too large", "short"])
def test_bytes_that_are_no_share_are_refused(value):
    with pytest.raises(SharesInconsistent):
        Share.from_bytes(1, value)


@pytest.mark.parametrize(("threshold", "points"), [(0, [1]), (3, [1, 2]), (1, [0, 1]), (2, [1, 1])])
def test_an_impossible_sharing_is_refused(threshold, points):
    with pytest.raises(ThresholdImpossible):
        split(SECRET, threshold, points)


def test_a_share_does_not_print_its_value():
    assert "123456789" not in repr(Share(1, 123456789))
