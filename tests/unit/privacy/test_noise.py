import math
import stat
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats

from parley.privacy.noise import (
    GRID,
    WORD_RANGE,
    EpsilonOutOfRange,
    KeyedNoise,
    RecordOutOfRange,
    WrongKeyLength,
    bernoulli,
    grid_laplace,
    new_key,
    read_or_create_key,
    wrong_answer_threshold,
)

KEY = bytes(range(32))
NOISE = KeyedNoise(KEY)
FALSE_ALARM = 1e-6
"""Of each statistical test, were the key random; with this fixed key the outcome never changes."""


def exact_exponential(epsilon: float) -> Fraction:
    """e^ε to 80 digits."""
    with localcontext() as context:
        context.prec = 80
        return Fraction(Decimal(epsilon).exp())


def test_a_record_gets_the_same_words_in_every_batch_layout():
    whole = NOISE.words("p", "run", 3, np.arange(1000), 5)
    batch = np.array([17, 999, 0, 17, 500])
    np.testing.assert_array_equal(NOISE.words("p", "run", 3, batch, 5), whole[batch])


def test_the_words_are_the_aes_256_ctr_key_stream():
    block_zero = NOISE.words("p", "run", 3, np.array([0]), 2)
    decryptor = Cipher(algorithms.AES(KEY), modes.ECB()).decryptor()  # noqa: S305
    nonce_block = decryptor.update(block_zero.tobytes())
    assert nonce_block[12:] == bytes(4)
    stream = Cipher(algorithms.AES(KEY), modes.CTR(nonce_block)).encryptor().update(bytes(16 * 300))
    np.testing.assert_array_equal(
        NOISE.words("p", "run", 3, np.arange(100), 6), np.frombuffer(stream, "<u8").reshape(100, 6)
    )


@pytest.mark.parametrize(
    "other", [("q", "run", 3), ("p", "ruN", 3), ("p", "run", 4), ("pr", "un", 3), ("p", "run3", 3)]
)
def test_another_purpose_run_or_release_shares_no_word(other):
    records = np.arange(5000)
    purpose, run, release = other
    ours, theirs = NOISE.words("p", "run", 3, records, 2), NOISE.words(purpose, run, release, records, 2)
    assert not np.isin(ours, theirs).any()


def test_another_key_shares_no_word():
    records = np.arange(5000)
    other = KeyedNoise(new_key()).words("p", "run", 3, records, 2)
    assert not np.isin(NOISE.words("p", "run", 3, records, 2), other).any()


def test_no_two_records_share_a_word():
    words = NOISE.words("p", "run", 3, np.arange(20_000), 3)
    assert np.unique(words).size == words.size


def test_records_that_would_wrap_the_counter_are_refused():
    last = (1 << 32) // 2 - 1
    NOISE.words("p", "run", 0, np.array([last]), 4)
    for record in (last + 1, -1):
        with pytest.raises(RecordOutOfRange):
            NOISE.words("p", "run", 0, np.array([record]), 4)


def test_the_key_does_not_show_in_text():
    assert "\\x01" not in repr(NOISE)
    assert str(KEY[5]) not in repr(NOISE)


def test_a_key_of_another_length_is_refused():
    with pytest.raises(WrongKeyLength):
        KeyedNoise(bytes(16))


def test_a_key_file_is_made_once_and_only_its_owner_reads_it(tmp_path):
    path = tmp_path / "label.key"
    key = read_or_create_key(path)
    assert read_or_create_key(path) == key
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_bytes(b"short")
    with pytest.raises(WrongKeyLength):
        read_or_create_key(path)


@pytest.mark.parametrize("epsilon", [1e-6, 0.1, 1.0, math.log(3), 5.0, 20.0, 44.0, 60.0])
@pytest.mark.parametrize("others", [1, 2, 9, 99])
def test_the_realised_epsilon_of_a_threshold_is_just_below_the_declared_one(epsilon, others):
    wrong = wrong_answer_threshold(epsilon, others)
    right = WORD_RANGE - others * wrong
    assert Fraction(right, wrong) <= exact_exponential(epsilon)
    assert right >= wrong * (1 - 1e-15)
    if epsilon < 20:
        assert math.log(Fraction(right, wrong)) == pytest.approx(epsilon, abs=1e-9)


def test_one_less_in_the_threshold_would_pass_the_declared_epsilon():
    for epsilon in (0.3, 1.0, 3.0):
        fewer = wrong_answer_threshold(epsilon, 9) - 1
        assert Fraction(WORD_RANGE - 9 * fewer, fewer) > exact_exponential(epsilon)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.inf, math.nan])
def test_an_epsilon_that_protects_nothing_is_refused(epsilon):
    with pytest.raises(EpsilonOutOfRange):
        wrong_answer_threshold(epsilon, 1)


def test_bernoulli_counts_the_words_below_its_threshold():
    words = np.array([0, 9, 10, WORD_RANGE - 1], dtype=np.uint64)
    np.testing.assert_array_equal(bernoulli(words, 10), [True, True, False, False])


UNIT_EPSILONS = [0.0005, 0.005, 0.05, 0.5, 1.0, 2.5, 10.0, 16.0]


@pytest.mark.parametrize("epsilon", UNIT_EPSILONS)
def test_the_table_is_a_distribution_and_keeps_its_declared_epsilon(epsilon):
    table = grid_laplace(epsilon)
    assert sum(table.masses.tolist()) == WORD_RANGE
    np.testing.assert_array_equal(table.masses, table.masses[::-1])
    assert epsilon - 2e-7 < table.realised_epsilon <= epsilon


@pytest.mark.parametrize("epsilon", UNIT_EPSILONS[1:])
def test_every_output_is_within_the_declared_ratio_for_both_labels_exactly(epsilon):
    """Integers only: the oracle for the float check that the table passes when it is made."""
    table = grid_laplace(epsilon)
    bound = exact_exponential(epsilon)
    zero, one = table.output_masses(0), table.output_masses(1)
    assert sum(zero) == sum(one) == WORD_RANGE
    assert min(zero) > 0
    assert all(
        p * bound.denominator <= q * bound.numerator and q * bound.denominator <= p * bound.numerator
        for p, q in zip(zero, one, strict=True)
    )


@pytest.mark.parametrize("epsilon", [0.05, 0.5, 2.5])
def test_the_table_is_the_discrete_laplace_distribution(epsilon):
    table = grid_laplace(epsilon)
    steps = np.arange(1 - table.reach, table.reach)
    expected = stats.dlaplace.pmf(steps, epsilon / GRID)
    np.testing.assert_allclose(table.masses[1:-1] / float(WORD_RANGE), expected, rtol=1e-4)


@pytest.mark.parametrize("epsilon", [0.0005, 0.5, 16.0])
def test_draws_invert_the_distribution_function_at_its_edges(epsilon):
    table = grid_laplace(epsilon)
    starts = np.concatenate([np.zeros(1, np.uint64), table.bounds])
    steps = np.arange(-table.reach, table.reach + 1)
    np.testing.assert_array_equal(table.draw(starts), steps)
    ends = np.concatenate([table.bounds - np.uint64(1), np.array([WORD_RANGE - 1], np.uint64)])
    np.testing.assert_array_equal(table.draw(ends), steps)


@pytest.mark.parametrize("epsilon", [0.05, 0.5, 2.5])
def test_draws_follow_the_table(epsilon):
    table = grid_laplace(epsilon)
    draws = table.draw(NOISE.words("test", "laplace", 0, np.arange(100_000), 2).ravel())
    cells = np.linspace(-3 * GRID / epsilon, 3 * GRID / epsilon, 20).round()
    observed = np.histogram(draws, np.concatenate([[-np.inf], cells + 0.5, [np.inf]]))[0]
    below = [float(table.masses[: int(cell) + table.reach + 1].sum()) / WORD_RANGE for cell in cells]
    expected = np.diff([0.0, *below, 1.0]) * draws.size
    keep = expected > 5
    statistic = ((observed - expected)[keep] ** 2 / expected[keep]).sum()
    assert statistic < stats.chi2.isf(FALSE_ALARM, keep.sum() - 1)


def test_noisy_values_stay_in_one_range_whatever_the_label():
    table = grid_laplace(2.5)
    extremes = np.array([0, WORD_RANGE - 1], dtype=np.uint64)
    for label in (0, 1):
        np.testing.assert_array_equal(table.noisy_steps(np.array([label, label]), extremes), [table.low, table.high])


@pytest.mark.parametrize("epsilon", [0.0, 1e-5, 17.0, math.inf, math.nan])
def test_a_scale_that_the_grid_cannot_carry_is_refused(epsilon):
    with pytest.raises(EpsilonOutOfRange):
        grid_laplace(epsilon)
