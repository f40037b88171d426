"""Pairwise masks: hidden alone, exact together, never twice."""

import hashlib
import itertools

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from parley.privacy.mask_stream import PairStream
from parley.privacy.pairwise import NotAParticipant, PairwiseMasker, RoundReused, sum_masked
from parley.privacy.ring import NotRingElements, Ring, RingTooSmall
from parley.privacy.session_keys import SessionKey, pair_secret
from parley.privacy.trees import TooFewParties

RING = Ring.WIDE


def maskers(count: int, ring: Ring = RING, **options) -> list[PairwiseMasker]:
    keys = [SessionKey.generate() for _ in range(count)]
    return [
        PairwiseMasker(
            u,
            {
                v: pair_secret(keys[u], f"p{u}", f"p{v}", keys[v].public_bytes, run_id="run", attempt=1, purpose="mask")
                for v in range(count)
                if v != u
            },
            ring,
            **options,
        )
        for u in range(count)
    ]


def encoded(seed: int, ring: Ring = RING, size: int = 50) -> np.ndarray:
    return ring.encode(np.random.default_rng(seed).normal(size=size))


@pytest.mark.parametrize("ring", [Ring.WIDE, Ring.NARROW], ids=["64", "32"])
@pytest.mark.parametrize("count", range(2, 17))
def test_the_masks_of_all_participants_cancel_to_the_bit(count, ring):
    values = [encoded(u, ring) for u in range(count)]
    answers = {u: m.mask(4, values[u], range(count)) for u, m in enumerate(maskers(count, ring))}
    assert np.array_equal(sum_masked(answers, range(count), ring), sum(values[1:], values[0]))


def test_only_the_sampled_participants_mask_each_other():
    values = [encoded(u) for u in range(5)]
    chosen = frozenset({0, 2, 3})
    parties = maskers(5)
    answers = {u: parties[u].mask(1, values[u], chosen) for u in chosen}
    assert np.array_equal(sum_masked(answers, chosen, RING), values[0] + values[2] + values[3])


def first_principles(secret, round_id, size, told=b""):
    """A pair's mask: AES of counters from where the round and what both were told begin."""
    keys = [
        hashlib.blake2b(use, key=secret, digest_size=32, person=b"parley/pair/v1").digest()
        for use in (b"masks", b"starts")
    ]
    start = hashlib.blake2b(round_id.to_bytes(8, "big") + told, key=keys[1], digest_size=16).digest()
    aes = Cipher(algorithms.AES(keys[0]), modes.ECB()).encryptor()  # noqa: S305 - the naive oracle for CTR
    counters = [(int.from_bytes(start, "big") + block) % 2**128 for block in range(size // 2 + 1)]
    stream = b"".join(aes.update(counter.to_bytes(16, "big")) for counter in counters)
    return np.frombuffer(stream, RING.dtype)[:size]


def test_masks_of_rounds_and_of_what_was_told_share_no_block():
    stream, drawn = PairStream(b"a" * 32), []
    for round_id, told in itertools.product((0, 1, 2**64 - 1), (b"", bytes(32), b"\1" + bytes(31))):
        drawn.append(np.zeros(4096, RING.dtype))
        stream.add(drawn[-1], round_id, told, RING)
        assert np.array_equal(drawn[-1][:100], first_principles(b"a" * 32, round_id, 100, told))
    everything = np.concatenate(drawn)
    assert np.unique(everything).size == everything.size


def test_an_answer_is_the_value_plus_later_peers_minus_earlier_peers():
    secrets = {0: b"a" * 32, 2: b"b" * 32, 3: b"c" * 32}
    value = encoded(1)
    answer = PairwiseMasker(1, secrets, RING).mask(6, value, range(4))
    streams = {v: first_principles(key, 6, value.size) for v, key in secrets.items()}
    assert np.array_equal(answer, value + streams[2] + streams[3] - streams[0])


def test_the_same_value_looks_unrelated_in_two_rounds():
    party = maskers(2)[0]
    value = encoded(0, size=1000)
    first, second = party.mask(1, value, range(2)), party.mask(2, value, range(2))
    assert not np.intersect1d(first, second).size


def test_the_input_is_left_alone():
    value = encoded(0)
    before = value.copy()
    maskers(2)[0].mask(0, value, range(2))
    assert np.array_equal(value, before)


@pytest.mark.parametrize("again", [5, 4, 0])
def test_a_round_is_never_used_twice_nor_out_of_order(again):
    party = maskers(3)[0]
    party.mask(5, encoded(0), range(3))
    with pytest.raises(RoundReused, match=f"round {again} is not after round 5"):
        party.mask(again, encoded(1), range(3))


def test_a_masker_that_is_made_again_goes_on_after_the_last_round():
    party = maskers(3, last_round=7)[0]
    with pytest.raises(RoundReused):
        party.mask(7, encoded(0), range(3))
    party.mask(8, encoded(0), range(3))
    assert party.last_round == 8


def test_a_refused_round_is_not_used_up():
    party = maskers(3)[0]
    with pytest.raises(TooFewParties):
        party.mask(5, encoded(0), {0})
    party.mask(5, encoded(0), range(3))


def test_fewer_than_the_partys_minimum_is_refused():
    party = maskers(4, minimum_parties=3)[0]
    with pytest.raises(TooFewParties, match="minimum of 3"):
        party.mask(1, encoded(0), {0, 1})


def test_a_minimum_below_two_is_refused():
    with pytest.raises(TooFewParties):
        maskers(2, minimum_parties=1)


def test_a_party_that_was_not_sampled_refuses_to_mask():
    with pytest.raises(NotAParticipant, match="party 0 is not among"):
        maskers(3)[0].mask(1, encoded(0), {1, 2})


def test_a_participant_without_a_key_is_refused():
    with pytest.raises(NotAParticipant, match=r"no key was agreed with parties \[9\]"):
        maskers(3)[0].mask(1, encoded(0), {0, 1, 9})


def test_more_parties_than_the_ring_can_sum_are_refused():
    tight = Ring(bits=32, fraction_bits=20, limit=1 << 10)
    with pytest.raises(RingTooSmall):
        maskers(3, tight)[0].mask(1, encoded(0, tight), range(3))


def test_values_of_another_ring_are_refused_before_the_round_is_used():
    party = maskers(2)[0]
    with pytest.raises(NotRingElements):
        party.mask(1, encoded(0, Ring.NARROW), range(2))
    assert party.last_round == -1


def test_a_missing_answer_opens_nothing():
    parties = maskers(3)
    answers = {u: parties[u].mask(1, encoded(u), range(3)) for u in (0, 1)}
    with pytest.raises(NotAParticipant, match="dropout recovery"):
        sum_masked(answers, range(3), RING)
