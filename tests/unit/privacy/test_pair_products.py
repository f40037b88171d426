"""Products of two parties' columns open as their sum, and what one party or the coordinator gets tells nothing else."""

import numpy as np
import pytest

from parley.party.explore.correlations import Products, standardised
from parley.privacy.pair_products import (
    LIMBS,
    column_mask,
    correlations_of,
    elements_of,
    fraction_bits,
    from_floats,
    pairs_of,
    to_floats,
)
from parley.protocols.tensor.codec import MessageInvalid

RNG = np.random.default_rng(5)
ROWS = 300
NAMES = ("a", "b", "c", "d")


def secrets_of(parties, seed=0):
    drawn = np.random.default_rng(seed)
    keys = {pair: drawn.bytes(32) for pair in ((i, j) for i in range(parties) for j in range(i))}
    return [{j: keys[max(i, j), min(i, j)] for j in range(parties) if j != i} for i in range(parties)]


def members(blocks, seed=0):
    sizes, secrets = tuple(block.shape[1] for block in blocks), secrets_of(len(blocks), seed)
    return [
        Products(block, np.arange(block.shape[1]), m, sizes, NAMES[: len(blocks)], secrets[m])
        for m, block in enumerate(blocks)
    ]


def exchanged(parties):
    received = [{} for _ in parties]
    for party in parties:
        for receiver, release in party.outgoing():
            received[receiver][release.content.pair] = release.content.elements
    return received


def summed(parties):
    return sum(party.draft(received) for party, received in zip(parties, exchanged(parties), strict=True))


@pytest.mark.parametrize("parties", [3, 4])
def test_correlations_are_those_of_the_pooled_table(parties):
    blocks = [RNG.lognormal(0, 2, (ROWS, m + 1)) for m in range(parties)]
    blocks[1][:, 0] += 3 * blocks[0][:, 0]
    pooled = np.corrcoef(np.hstack(blocks).T)
    inflation = np.diag(np.linalg.inv(pooled))
    np.fill_diagonal(pooled, np.nan)  # a column's with itself is not told
    starts = np.cumsum([0, *(block.shape[1] for block in blocks)])
    everyone = members(blocks)
    products = from_floats(summed(everyone))
    for m, party in enumerate(everyone):
        found = party.correlations(products)
        for (other, number), values in zip(found.others, found.values.T, strict=True):
            wanted = pooled[starts[m] : starts[m + 1], starts[other] + number - 1]
            np.testing.assert_allclose(values, wanted, atol=1e-6)
        np.testing.assert_allclose(found.inflation, inflation[starts[m] : starts[m + 1]], rtol=1e-6)


def test_a_column_that_marks_one_row_reads_that_row_off_every_column_that_is_named():
    """Nobody sees which columns another party brings: an owner names columns to those who may bring such ones."""
    secret, marking, other = RNG.normal(size=(ROWS, 1)), np.zeros((ROWS, 1)), RNG.normal(size=(ROWS, 1))
    marking[17] = 1.0
    everyone = members([secret, marking, other])
    found = everyone[1].correlations(from_floats(summed(everyone))).values[0, 0]
    assert found * np.sqrt(ROWS - 1) == pytest.approx(standardised(secret)[17, 0], abs=1e-5)


def test_a_column_that_follows_from_others_has_no_inflation_and_inflates_none():
    blocks = [RNG.normal(size=(ROWS, 2)) for _ in range(3)]
    wanted = np.diag(np.linalg.inv(np.corrcoef(np.hstack(blocks).T)))
    blocks[2] = np.column_stack([blocks[2], blocks[0].sum(axis=1) - 2 * blocks[1][:, 0]])
    everyone = members(blocks)
    products = from_floats(summed(everyone))
    found = np.concatenate([party.correlations(products).inflation for party in everyone])
    np.testing.assert_allclose(found, [*wanted, np.nan], rtol=1e-6)


def test_a_column_that_is_one_rows_fits_as_many_rows_as_any_other():
    columns = np.zeros((ROWS, 1))
    columns[17] = 1e9
    products = from_floats(summed(members([columns, columns, RNG.normal(size=(ROWS, 1))])))
    assert correlations_of(products, ROWS)[0] == pytest.approx(1.0, abs=1e-6)
    assert ROWS * 2 ** (2 * fraction_bits(ROWS)) < 2**62


def test_what_leaves_looks_the_same_whatever_the_columns_are():
    """The masked columns of zeros, less those of other columns under the same mask, are exactly the columns: the mask
    does not depend on them, and it is a key stream of full width."""
    columns = RNG.normal(size=(ROWS, 2))
    other = RNG.normal(size=(ROWS, 1))
    told, blank = (exchanged(members([block, other, other])) for block in (columns, np.zeros((ROWS, 2))))
    np.testing.assert_array_equal(told[1][0] - blank[1][0], elements_of(standardised(columns)))
    bits = np.unpackbits(told[1][0].view(np.uint8)).mean()
    assert bits == pytest.approx(0.5, abs=0.02)  # 38400 bits: a false alarm in 10^15
    assert np.abs(np.corrcoef(told[1][0].astype(float)[:, 0], columns[:, 0])[0, 1]) < 0.3  # 300 rows: one in 10^7


def test_each_partys_term_is_hidden_and_only_the_sum_means_something():
    blocks = [RNG.normal(size=(ROWS, 2)) for _ in range(3)]
    first, second = members(blocks), members(blocks, seed=1)
    for one, other in zip(first, second, strict=True):
        place = first.index(one), second.index(other)
        drafts = one.draft(exchanged(first)[place[0]]), other.draft(exchanged(second)[place[1]])
        between = [draft.reshape(LIMBS, -1)[:, :12] for draft in drafts]  # three pairs of two columns each
        assert np.mean(between[0] == between[1]) < 0.1
    np.testing.assert_array_equal(from_floats(summed(first)), from_floats(summed(second)))


def test_the_receiver_and_the_helper_together_know_the_columns():
    """What the threat model says is not defended."""
    blocks = [RNG.normal(size=(ROWS, 2)) for _ in range(3)]
    masked, pair = exchanged(members(blocks))[1][0], pairs_of(3)[0]
    known_to_helper = column_mask(secrets_of(3)[pair.helper][0], pair, first=True, shape=masked.shape)
    found = (masked - known_to_helper).view(np.int64) / 2.0 ** fraction_bits(ROWS)
    np.testing.assert_allclose(found, standardised(blocks[0]), atol=1e-6)


def test_every_pair_has_a_helper_of_its_own_and_two_parties_have_none():
    for parties in (3, 4, 7):
        for pair in pairs_of(parties):
            assert pair.helper not in (pair.first, pair.second)
            assert pair.helper < parties
    with pytest.raises(ValueError, match="third party"):
        pairs_of(2)


def test_columns_of_another_pair_or_another_size_are_refused():
    everyone = members([RNG.normal(size=(ROWS, 2)) for _ in range(3)])
    ((_, release),) = [one for one in everyone[0].outgoing() if one[0] == 1]
    with pytest.raises(MessageInvalid, match="not of this party"):
        everyone[1].check(2, release.content)
    smaller = type(release.content)(release.content.pair, release.content.elements[:-1])
    with pytest.raises(MessageInvalid, match="rows"):
        everyone[1].check(0, smaller)


def test_limbs_carry_every_element():
    elements = RNG.integers(0, 2**64, 50, dtype=np.uint64)
    wanted = elements.view(np.int64).astype(float) * 2.0**-62
    np.testing.assert_array_equal(from_floats(to_floats(elements)), wanted)
