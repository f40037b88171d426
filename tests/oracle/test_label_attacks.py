"""Attacks on what leaves the coordinator: none beats what ε allows, and each works where there is no protection."""

import numpy as np
import pytest

from parley.attacks.labels import ATTACKS, cap, margin, recovered_rows
from parley.experiments.bambi_dp_attacks import (
    accuracy,
    laplace,
    naive_float_accuracy,
    paper_algorithm_3,
    view_of_algorithm_3,
    view_of_ours,
)
from parley.privacy.label_vault import LabelPolicy

RECORDS = 3000

PROTECTED = [
    (LabelPolicy("once", 1.0, "randomised_response"), 2, 1),
    (LabelPolicy("once", 1.0, "randomised_response"), 3, 1),
    (LabelPolicy("once", 1.0, "randomised_response"), 10, 1),
    (LabelPolicy("once", 1.0, "randomised_response"), 10, 10),
    (LabelPolicy("once", 1.0, "unary_encoding"), 10, 1),
    (LabelPolicy("once", 1.0, "unary_encoding"), 10, 10),
    (LabelPolicy("once", 3.0), 10, 1),
    (LabelPolicy("per_step", 1.0), 2, 1),
    (LabelPolicy("per_step", 1.0), 3, 1),
    (LabelPolicy("per_step", 1.0), 10, 1),
    (LabelPolicy("per_step", 0.5), 10, 2),
    (LabelPolicy("per_step", 1.0, "randomised_response"), 10, 2),
]


def guesses(name, view):
    return ATTACKS[name](view, np.random.default_rng(1))


@pytest.mark.parametrize(("policy", "classes", "releases"), PROTECTED, ids=str)
def test_no_attack_passes_the_cap(policy, classes, releases):
    """Margin: four standard errors, so that a sound mechanism fails one of the 60 pairs once in 500 keys."""
    view, labels = view_of_ours(policy, classes, RECORDS, releases)
    limit = cap(policy.epsilon * (1 if policy.schedule == "once" else releases), classes)
    for name in ATTACKS:
        assert accuracy(guesses(name, view), labels) <= limit + margin(limit, int(0.9 * RECORDS)), name


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_reads_the_labels_where_privacy_is_off(name, classes):
    view, labels = view_of_ours(LabelPolicy("off"), classes, RECORDS, 1)
    # with two classes both labels have the same line, and `residual` has only float dust to go by
    assert accuracy(guesses(name, view), labels) > (0.9 if (name, classes) == ("residual", 2) else 0.995)


@pytest.mark.parametrize(("policy", "classes", "releases"), PROTECTED, ids=str)
def test_the_replay_attack_really_recovers_the_noisy_labels(policy, classes, releases):
    """The strongest adversary: it sees ỹ itself, so that the cap is tested where it is tight."""
    view, _ = view_of_ours(policy, classes, RECORDS, releases)
    rows = recovered_rows(view, view.gradients[0], view.logits[0])
    again = view.loss.gradient(view.logits[0], rows.astype(np.float32)) * RECORDS
    np.testing.assert_allclose(again, view.gradients[0], atol=1e-4)


def test_randomised_response_is_tight_so_that_a_leak_would_be_seen():
    view, labels = view_of_ours(LabelPolicy("once", 1.0, "randomised_response"), 10, 20_000, 1)
    assert accuracy(guesses("replay", view), labels) == pytest.approx(cap(1.0, 10), abs=margin(cap(1.0, 10), 18_000))


def test_ten_releases_of_one_draw_say_no_more_than_one():
    policy = LabelPolicy("once", 1.0, "randomised_response")
    one, _ = view_of_ours(policy, 10, RECORDS, 1)
    ten, _ = view_of_ours(policy, 10, RECORDS, 10)
    np.testing.assert_array_equal(guesses("replay", one), guesses("replay", ten))


def test_fresh_noise_at_every_step_is_averaged_away():
    """Why `per_step` is charged for every release."""
    policy = LabelPolicy("per_step", 1.0)
    one, labels = view_of_ours(policy, 10, 800, 1)
    many, _ = view_of_ours(policy, 10, 800, 30)
    assert accuracy(guesses("replay", one), labels) < 0.25
    assert accuracy(guesses("replay", many), labels) > 0.6


@pytest.mark.parametrize("epsilon", [0.01, 0.1, 1.0])
def test_the_paper_s_algorithm_3_gives_every_label_away(epsilon):
    view, labels = view_of_algorithm_3(epsilon, 10, RECORDS)
    assert accuracy(guesses("residual", view), labels) == 1.0


def test_the_paper_s_algorithm_3_adds_no_noise_at_uniform_predictions():
    labels = np.arange(10)
    p = np.full((10, 10), 0.1)
    noise = laplace(np.random.default_rng(0).uniform(size=10), scale=1e6)
    np.testing.assert_allclose(paper_algorithm_3(labels, p, noise), p - np.eye(10), atol=1e-9)


@pytest.mark.parametrize("epsilon", [0.1, 1.0])
def test_the_paper_s_algorithm_2_leaks_through_the_order_of_its_float_operations(epsilon):
    assert naive_float_accuracy(epsilon, RECORDS) > max(0.85, cap(epsilon, 2) + margin(cap(epsilon, 2), RECORDS))
