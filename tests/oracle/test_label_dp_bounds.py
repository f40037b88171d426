"""Exact likelihood ratios of what the label mechanisms put out, by enumeration of every word of the key stream.

A mechanism is a step function of its random words. The tests feed it the words around every step, so that the mass of
each output is known as an integer; no sampling error, no trust in the tables that the mechanism itself uses.
"""

import itertools
import math
from collections import Counter
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from parley.numerics.losses import Logistic, Softmax
from parley.privacy.accounting import LOSS, Composed, LaplaceLabels, RandomisedResponse, UnaryEncoding
from parley.privacy.label_mechanisms import LaplaceRows, RandomisedLabels, UnaryLabels
from parley.privacy.noise import WORD_RANGE, KeyedNoise

NOISE = KeyedNoise(bytes(range(32)))
EPSILONS = [0.1, 1.0, 5.0]


class ChosenWords:
    """A source that hands out the words that a test has chosen, one row for each record."""

    def __init__(self, words: np.ndarray) -> None:
        self.chosen = words

    def words(self, purpose, run, release, records, count):
        assert self.chosen.shape == (len(records), count)
        return self.chosen


def exponential(epsilon: float) -> Fraction:
    with localcontext() as context:
        context.prec = 80
        return Fraction(Decimal(epsilon).exp())


def outputs(mechanism, label: int, words: np.ndarray) -> np.ndarray:
    count = len(words)
    return mechanism.noisy(np.full(count, label), ChosenWords(words), "run", 0, np.arange(count))


def masses(edges: list[int], at_edges: np.ndarray, before_edges: np.ndarray) -> Counter:
    """Sum the lengths of the steps by output; the function must be constant between two edges."""
    found: Counter = Counter()
    for position, (start, stop) in enumerate(itertools.pairwise([*edges, WORD_RANGE])):
        assert tuple(at_edges[position]) == tuple(before_edges[position])
        found[tuple(at_edges[position])] += stop - start
    return found


def output_masses(mechanism, label: int, edges: list[int], words_per_record: int, column: int) -> Counter:
    """The distribution of the output as one word runs through all values and the others stand still."""
    starts = np.zeros((len(edges), words_per_record), dtype=np.uint64)
    starts[:, column] = edges
    ends = np.zeros_like(starts)
    ends[:, column] = [stop - 1 for stop in [*edges[1:], WORD_RANGE]]
    return masses(edges, outputs(mechanism, label, starts), outputs(mechanism, label, ends))


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("classes", [2, 3, 10])
def test_randomised_response_keeps_its_epsilon_for_every_pair_of_labels_and_every_output(classes, epsilon):
    mechanism = RandomisedLabels(epsilon, classes)
    edges = [cell * mechanism.wrong_mass for cell in range(classes)]
    by_label = [output_masses(mechanism, label, edges, 1, 0) for label in range(classes)]
    assert all(len(found) == classes and sum(found.values()) == WORD_RANGE for found in by_label)
    worst = max(Fraction(p[row], q[row]) for p in by_label for q in by_label for row in p)
    assert worst <= exponential(epsilon)
    assert math.log(worst) == pytest.approx(epsilon, abs=1e-9)  # and does not waste it


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("classes", [3, 10])
def test_unary_bits_keep_their_epsilon_for_every_pair_of_labels_and_every_output(classes, epsilon):
    mechanism = UnaryLabels(epsilon, classes)
    edges = sorted({0, mechanism.other_mass, WORD_RANGE // 2})
    probability = np.empty((2, 2), dtype=object)  # [own class?, bit]
    for own in (0, 1):
        found = output_masses(mechanism, 0 if own else 1, edges, classes, 0)
        for bit in (0, 1):
            probability[own, bit] = Fraction(sum(n for row, n in found.items() if row[0] == bit), WORD_RANGE)
    # bits are independent; between two labels only their own two bits differ
    worst = max(
        probability[1, own] * probability[0, other] / (probability[0, own] * probability[1, other])
        for own in (0, 1)
        for other in (0, 1)
    )
    assert worst <= exponential(epsilon)
    assert math.log(worst) == pytest.approx(epsilon, abs=1e-9)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("classes", [2, 3, 10])
def test_laplace_rows_keep_their_epsilon_for_every_pair_of_labels_and_every_output(classes, epsilon):
    mechanism = LaplaceRows(epsilon, classes)
    edges = [0, *mechanism.table.bounds.tolist()]
    draws = 1 if classes == 2 else classes
    column = 1 if classes == 2 else 0
    own_label, other_label = (1, 0) if classes == 2 else (0, 1)
    own, other = (
        Counter({row[column]: n for row, n in output_masses(mechanism, label, edges, draws, 0).items()})
        for label in (own_label, other_label)
    )
    assert own.keys() == other.keys()
    worst = max(max(Fraction(own[v], other[v]), Fraction(other[v], own[v])) for v in own)
    # coordinates are independent; between two one-hot rows two of them differ, with two classes one draw serves both
    assert worst ** (1 if classes == 2 else 2) <= exponential(epsilon)
    assert mechanism.event.coordinates * math.log(worst) == pytest.approx(epsilon, abs=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_both_labels_can_release_exactly_the_same_floats(dtype):
    """A float that only one label can produce would give it away whatever ε is."""
    mechanism = LaplaceRows(1.0, 2)
    words = np.array([0, *mechanism.table.bounds.tolist()], dtype=np.uint64)[:, None]
    h = np.full((len(words), 1), 0.3217, dtype=dtype)
    released = [
        {value.tobytes() for value in Logistic().gradient(h, outputs(mechanism, label, words)[:, 1:])}
        for label in (0, 1)
    ]
    assert released[0] == released[1]
    assert len(released[0]) > 500


@pytest.mark.parametrize(
    "mechanism", [RandomisedLabels(1.0, 3), UnaryLabels(1.0, 3), LaplaceRows(1.0, 3), LaplaceRows(1.0, 2)], ids=str
)
def test_sampled_gradients_show_no_event_beyond_the_declared_ratio(mechanism):
    """Monte Carlo on the bytes that leave: the lower confidence bound of every log-ratio stays below ε.

    400 events, each at a one-sided level of 1e-7: a false alarm once in 25 000 keys.
    """
    records = np.arange(100_000)
    h = np.tile(np.array([[0.3, -0.2, 0.9]], dtype=np.float32)[:, : mechanism.classes], (records.size, 1))
    loss = mechanism.training_loss(Softmax(mechanism.classes))
    released = [
        loss.gradient(h, mechanism.noisy(np.full(records.size, label), NOISE, "mc", label, records)) for label in (0, 1)
    ]
    directions = np.random.default_rng(0).normal(size=(40, mechanism.classes))
    pooled = np.concatenate(released) @ directions.T
    for column in range(len(directions)):
        for threshold in np.quantile(pooled[:, column], np.linspace(0.02, 0.98, 10)):
            hits = [int((rows @ directions[column] <= threshold).sum()) for rows in released]
            for p, q in (hits, hits[::-1]):
                low = stats.beta.ppf(1e-7, p, records.size - p + 1) if p else 0.0
                high = stats.beta.isf(1e-7, q + 1, records.size - q) if q < records.size else 1.0
                assert low <= high * math.exp(mechanism.epsilon)


@pytest.mark.parametrize(
    "release",
    [LaplaceLabels(1.0, 10), LaplaceLabels(1.0, 2), RandomisedResponse(1.0, 10), UnaryEncoding(1.0, 10)],
    ids=str,
)
@pytest.mark.parametrize("delta", [1e-2, 1e-5])
def test_the_accountant_finds_the_delta_of_a_brute_force_convolution(release, delta):
    times = 5
    lattice = release.loss()
    total = {0: 1.0}
    for _ in range(times):
        grown: dict[int, float] = {}
        for (k, p), (j, q) in itertools.product(total.items(), lattice.masses):
            grown[k + j] = grown.get(k + j, 0.0) + p * q
        total = grown
    epsilon = LOSS.epsilon(Composed(release, times), delta)
    exact = sum(max(0.0, p - p * math.exp(epsilon - k * lattice.step)) for k, p in total.items())
    assert exact == pytest.approx(delta, rel=1e-4)
