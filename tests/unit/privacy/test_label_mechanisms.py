import math

import numpy as np
import pytest

from parley.numerics.losses import (
    ForwardCorrectedBits,
    ForwardCorrectedLogistic,
    ForwardCorrectedSoftmax,
    Logistic,
    Softmax,
)
from parley.privacy.accounting import InvalidEvent, LaplaceLabels, RandomisedResponse, UnaryEncoding, Unprotected
from parley.privacy.label_mechanisms import (
    LaplaceRows,
    NoNoise,
    RandomisedLabels,
    UnaryLabels,
    UnknownLabelMechanism,
    choose_mechanism,
)
from parley.privacy.noise import EpsilonOutOfRange, KeyedNoise

NOISE = KeyedNoise(bytes(32))
RECORDS = np.arange(60_000)
MECHANISMS = [
    RandomisedLabels(1.0, 2),
    RandomisedLabels(1.0, 10),
    UnaryLabels(1.0, 10),
    LaplaceRows(1.0, 2),
    LaplaceRows(1.0, 10),
    NoNoise(3),
]


def draw(mechanism, label: int, release: int = 0) -> np.ndarray:
    return mechanism.noisy(np.full(RECORDS.size, label), NOISE, "run", release, RECORDS)


def test_two_classes_are_randomised_once_by_default():
    assert choose_mechanism("once", 2, 1.0) == RandomisedLabels(1.0, 2)


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("classes", [3, 10, 50])
def test_more_classes_get_the_mechanism_of_lower_variance(epsilon, classes):
    chosen = choose_mechanism("once", classes, epsilon)
    other = (UnaryLabels if isinstance(chosen, RandomisedLabels) else RandomisedLabels)(epsilon, classes)
    assert chosen.mean_variance() <= other.mean_variance()


def test_both_mechanisms_have_their_place():
    assert isinstance(choose_mechanism("once", 10, 1.0), UnaryLabels)
    assert isinstance(choose_mechanism("once", 10, 3.0), RandomisedLabels)


def test_the_paper_s_schedule_gets_laplace_rows():
    assert choose_mechanism("per_step", 10, 0.5) == LaplaceRows(0.5, 10)


def test_no_noise_must_be_asked_for_and_is_named_as_such():
    mechanism = choose_mechanism("off", 10)
    assert mechanism.event == Unprotected()
    assert mechanism.epsilon_per_release == math.inf
    with pytest.raises(UnknownLabelMechanism, match="drop one"):
        choose_mechanism("off", 10, 1.0)
    with pytest.raises(UnknownLabelMechanism, match="say off"):
        choose_mechanism("once", 10)


@pytest.mark.parametrize(("schedule", "kind"), [("once", "laplace"), ("once", "gaussian"), ("twice", "auto")])
def test_an_unknown_combination_is_refused(schedule, kind):
    with pytest.raises(UnknownLabelMechanism, match="choose among"):
        choose_mechanism(schedule, 10, 1.0, kind)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.inf, math.nan])
@pytest.mark.parametrize("schedule", ["once", "per_step"])
def test_an_epsilon_that_makes_no_sense_is_refused(schedule, epsilon):
    with pytest.raises((InvalidEvent, EpsilonOutOfRange)):
        choose_mechanism(schedule, 10, epsilon)


def test_the_ledger_is_told_what_each_mechanism_is():
    assert RandomisedLabels(1.0, 10).event == RandomisedResponse(1.0, 10)
    assert UnaryLabels(1.0, 10).event == UnaryEncoding(1.0, 10)
    assert LaplaceRows(1.0, 10).event == LaplaceLabels(1.0, 10)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=str)
def test_a_record_gets_the_same_row_in_every_batch_layout(mechanism):
    labels = RECORDS % mechanism.classes
    whole = mechanism.noisy(labels, NOISE, "run", 4, RECORDS)
    batch = np.array([9, 50_000, 9, 0])
    again = mechanism.noisy(labels[batch], NOISE, "run", 4, batch)
    assert again.tobytes() == whole[batch].tobytes()
    assert whole.shape == (RECORDS.size, mechanism.classes)
    assert whole.dtype == np.float32


@pytest.mark.parametrize("mechanism", MECHANISMS[:-1], ids=str)
def test_another_release_draws_other_noise(mechanism):
    assert (draw(mechanism, 0, release=1) != draw(mechanism, 0, release=2)).any(axis=1).mean() > 0.3


@pytest.mark.parametrize("mechanism", MECHANISMS[:-1], ids=str)
@pytest.mark.parametrize("label", [0, 1])
def test_a_debiased_row_has_the_true_row_as_its_mean_and_the_stated_variance(mechanism, label):
    """False alarms: below 1e-6 for each entry (five standard errors), were the key random."""
    rows = draw(mechanism, label)
    rows = mechanism.debiased(rows) if hasattr(mechanism, "debiased") else rows
    truth = np.eye(mechanism.classes)[label]
    error = rows.std(axis=0) / math.sqrt(len(rows))
    assert (np.abs(rows.mean(axis=0) - truth) < 5 * error + 1e-4).all()
    assert rows.var(axis=0).mean() == pytest.approx(mechanism.mean_variance(), rel=0.05)


@pytest.mark.parametrize(
    ("mechanism", "variance"),
    [
        (RandomisedLabels(1.0, 2), 0.92),
        (LaplaceRows(1.0, 2), 2.0),
        (UnaryLabels(1.0, 10), 3.8),
        (LaplaceRows(1.0, 10), 8.0),
    ],
)
def test_the_known_variances_at_epsilon_one(mechanism, variance):
    assert mechanism.mean_variance() == pytest.approx(variance, rel=0.02)


@pytest.mark.parametrize("classes", [2, 10])
def test_randomised_classes_follow_the_stated_transition(classes):
    mechanism = RandomisedLabels(1.0, classes)
    for label in range(classes):
        share = draw(mechanism, label).mean(axis=0)
        error = np.sqrt(share * (1 - share) / RECORDS.size)
        assert (np.abs(share - mechanism.transition[:, label]) < 5 * error).all()


def test_two_class_laplace_rows_sum_to_one():
    np.testing.assert_array_equal(draw(LaplaceRows(1.0, 2), 1).sum(axis=1), 1)


@pytest.mark.parametrize("classes", [2, 10])
def test_laplace_rows_lie_on_the_grid_exactly(classes):
    steps = draw(LaplaceRows(0.1, classes), 1) * 16
    np.testing.assert_array_equal(steps, steps.round())


def test_randomised_labels_train_on_their_likelihood():
    softmax = RandomisedLabels(1.0, 10).training_loss(Softmax(10))
    assert isinstance(softmax, ForwardCorrectedSoftmax)
    np.testing.assert_array_equal(softmax.transition, RandomisedLabels(1.0, 10).transition)
    logistic = RandomisedLabels(1.0, 2).training_loss(Logistic())
    assert isinstance(logistic, ForwardCorrectedLogistic)
    assert logistic.flip == pytest.approx(1 / (1 + math.e))
    bits = UnaryLabels(1.0, 10).training_loss(Softmax(10))
    assert isinstance(bits, ForwardCorrectedBits)
    assert LaplaceRows(1.0, 10).training_loss(Softmax(10)) == Softmax(10)


@pytest.mark.parametrize("mechanism", [RandomisedLabels(1.0, 10), UnaryLabels(1.0, 10)], ids=str)
def test_the_training_loss_leads_back_to_the_clean_class_shares(mechanism):
    """One shared logit row, 60 000 noisy labels: the minimiser is within 0.02 of the clean shares."""
    labels = np.repeat(np.arange(10), [30_000, 12_000, 6_000, 4_000, 3_000, 2_000, 1_500, 800, 500, 200])
    noisy = mechanism.noisy(labels, NOISE, "run", 0, RECORDS)
    loss = mechanism.training_loss(Softmax(10))
    kinds, weights = np.unique(noisy, axis=0, return_counts=True)
    h = np.zeros(10)
    for _ in range(4000):
        rows = loss.gradient(np.tile(h, (len(kinds), 1)), kinds) * len(kinds)
        h = h - 20 * weights @ rows / weights.sum()
    shares = loss.predict(h[None])[0]
    np.testing.assert_allclose(shares, np.bincount(labels) / labels.size, atol=0.02)
