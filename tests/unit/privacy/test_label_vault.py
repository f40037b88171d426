import copy
import pickle

import numpy as np
import pytest

from parley.numerics.losses import (
    ClassOutOfRange,
    ForwardCorrectedLogistic,
    ForwardCorrectedSoftmax,
    Logistic,
    Softmax,
    Squared,
)
from parley.privacy.accounting import LaplaceLabels, RandomisedResponse, Unprotected
from parley.privacy.label_mechanisms import UnknownLabelMechanism
from parley.privacy.label_vault import (
    LabelPolicy,
    LabelsStayInTheVault,
    LabelVault,
    NoSuchRecord,
    RegressionLabelsUnprotected,
)
from parley.privacy.noise import KeyedNoise
from parley.privacy.target_bins import Bins

NOISE = KeyedNoise(bytes(32))
LABELS = np.random.default_rng(0).integers(0, 5, 400)
ONCE = LabelPolicy("once", 2.0, "randomised_response")
PER_STEP = LabelPolicy("per_step", 0.5)
OFF = LabelPolicy("off")


def vault(policy: LabelPolicy, loss=None, labels=LABELS, run: str = "run") -> LabelVault:
    return LabelVault(labels, loss or Softmax(5), policy, NOISE, run)


def test_one_draw_serves_every_release_of_a_run():
    box = vault(ONCE)
    rows = np.array([3, 399, 3, 0])
    assert box.target(0, rows).tobytes() == box.target(77, rows).tobytes()
    assert box.billed_release(77) == 0


def test_per_step_noise_is_fresh_for_a_release_and_the_same_on_its_replay():
    box = vault(PER_STEP)
    rows = np.arange(400)
    first = box.target(1, rows)
    assert (first != box.target(2, rows)).mean() > 0.9
    assert box.target(1, rows).tobytes() == first.tobytes()
    assert box.billed_release(77) == 77


@pytest.mark.parametrize("policy", [ONCE, PER_STEP], ids=lambda policy: policy.schedule)
def test_a_restarted_vault_replays_the_same_bytes_in_any_batch_layout(policy):
    rows = np.random.default_rng(1).permutation(400)[:64]
    whole = vault(policy).target(9, np.arange(400))
    assert vault(policy).target(9, rows).tobytes() == whole[rows].tobytes()
    other = vault(policy, run="another").target(9, rows)
    assert (other == whole[rows]).all() if policy is ONCE else (other != whole[rows]).any()


def test_no_noisy_row_equals_the_labels_and_no_attribute_returns_them():
    box = vault(ONCE)
    wrong = (box.target(0, np.arange(400)).argmax(axis=1) != LABELS).mean()
    assert 0.2 < wrong < 0.5  # 4/(e² + 4) = 0.35
    public = {name for name in dir(box) if not name.startswith("_")}
    assert public == {"billed_release", "draw", "event", "loss_for_training", "score", "tags", "target"}


def test_the_loss_for_training_fits_the_noise():
    assert isinstance(vault(ONCE).loss_for_training(), ForwardCorrectedSoftmax)
    assert vault(PER_STEP).loss_for_training() == Softmax(5)
    assert vault(OFF).loss_for_training() == Softmax(5)
    assert isinstance(
        vault(LabelPolicy("once", 1.0), Logistic(), LABELS % 2).loss_for_training(), ForwardCorrectedLogistic
    )


def test_the_event_is_what_the_ledger_has_to_charge():
    assert vault(ONCE).event == RandomisedResponse(2.0, 5)
    assert vault(PER_STEP).event == LaplaceLabels(0.5, 5)
    assert vault(OFF).event == Unprotected()


@pytest.mark.parametrize("policy", [LabelPolicy("once", 1.0), LabelPolicy("per_step", 1.0), OFF], ids=str)
def test_one_logit_gets_one_column_and_the_same_noise_as_two(policy):
    rows = np.arange(400)
    narrow = vault(policy, Logistic(), LABELS % 2).target(3, rows)
    wide = vault(policy, Softmax(2), LABELS % 2).target(3, rows)
    assert narrow.shape == (400, 1)
    np.testing.assert_array_equal(narrow[:, 0], wide[:, 1])


def test_without_protection_the_target_is_the_label():
    np.testing.assert_array_equal(vault(OFF).target(0, np.arange(400)).argmax(axis=1), LABELS)
    values = np.linspace(-1, 1, 400)
    box = vault(OFF, Squared(), values)
    np.testing.assert_array_equal(box.target(0, np.array([0, 399])), [[-1], [1]])
    assert box.event == Unprotected()


@pytest.mark.parametrize("policy", [ONCE, PER_STEP], ids=lambda policy: policy.schedule)
def test_protection_of_regression_labels_is_refused_with_a_way_out(policy):
    with pytest.raises(RegressionLabelsUnprotected, match="bins of a declared range"):
        vault(policy, Squared(), np.linspace(-1, 1, 400))


def test_targets_of_a_regression_are_drawn_once_on_bins_and_go_into_the_ledger_as_randomised_response():
    values = np.linspace(-1, 1, 400)
    policy = LabelPolicy("once", 2.0, bins=Bins(-1.0, 1.0, 3))
    box, again = (vault(policy, Squared(), values, run=run) for run in ("one", "another"))
    rows = np.arange(400)
    targets = box.target(0, rows)
    assert targets.shape == (400, 1)
    assert np.unique(targets).size == 3
    assert np.array_equal(targets, again.target(5, rows))  # whatever the run and the release
    assert box.event == RandomisedResponse(2.0, 3)
    assert box.draw == again.draw
    assert box.draw != vault(LabelPolicy("once", 2.0, bins=Bins(-1.0, 1.5, 3)), Squared(), values).draw
    moved = vault(policy, Squared(), values + 1e-9).target(0, rows)
    assert not np.array_equal(targets, moved)  # a value that has changed draws noise of its own


def test_scores_are_on_the_true_labels_whatever_the_noise():
    perfect = 20 * np.eye(5)[LABELS]
    score = vault(ONCE).score(np.arange(400), perfect)
    assert (score.accuracy, score.accuracy_name) == (1.0, "accuracy")
    assert score.loss < 1e-6


def test_records_that_do_not_exist_are_refused_before_numpy_wraps_them():
    for row in (-1, 400):
        with pytest.raises(NoSuchRecord):
            vault(ONCE).target(0, np.array([row]))


def test_labels_that_do_not_fit_the_loss_are_refused():
    with pytest.raises(ClassOutOfRange):
        vault(ONCE, Softmax(4))
    with pytest.raises(ClassOutOfRange):
        vault(OFF, Logistic(), np.array([-1, 1]))


def test_two_bits_do_not_fit_one_logit():
    with pytest.raises(UnknownLabelMechanism):
        vault(LabelPolicy("once", 1.0, "unary_encoding"), Logistic(), LABELS % 2)


def test_the_vault_neither_prints_nor_serialises_its_labels():
    box = vault(ONCE)
    assert repr(box) == "LabelVault(400 records, LabelPolicy(schedule='once', epsilon=2.0, kind='randomised_response'))"
    with pytest.raises(LabelsStayInTheVault):
        pickle.dumps(box)
    with pytest.raises(LabelsStayInTheVault):
        copy.copy(box)
