"""How the coordinator paces local rounds."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from parley.coordinator.bambi.local_rounds import LocalPlan, Pace, decide, next_steps, passes, sent_labels
from parley.coordinator.bambi.problem import Problem
from parley.numerics.losses import Logistic, Softmax
from parley.privacy.label_mechanisms import RandomisedLabels, UnaryLabels
from parley.protocols.bambi.settings import BambiSpec
from parley.spec.rows import RowSets

LABELS = np.random.default_rng(0).integers(3, size=100)
TARGET = np.eye(3, dtype=np.float32)[LABELS]


def problem(rows=100, **local):
    settings = BambiSpec.model_validate(
        {
            "algorithm": "bambi",
            "hypergradient": "local",
            "local": {"rows": rows, "minibatch": 10, "epochs": 5, "total_epochs": 50} | local,
        }
    )
    sets = RowSets(np.arange(100), np.arange(100), np.empty(0, np.int64))
    return Problem(LocalPlan(settings, sets, 1), Softmax(3), None, 3, "float32")


def logits(confidence):
    """Sums with which the loss falls as confidence rises."""
    noise = np.random.default_rng(1).standard_normal(TARGET.shape).astype(np.float32)
    return (confidence * TARGET + 0.3 * noise).astype(np.float32)


def paced(problem, confidences, target=TARGET):
    works, paces = [], [Pace()]
    for confidence in confidences:
        work, pace = decide(problem, paces[-1], logits(confidence)[: len(target)], target)
        works.append(work)
        paces.append(pace)
    return works, paces[1:]


def test_where_the_loss_falls_fast_parties_work_as_long_as_they_may_and_nothing_is_extrapolated():
    works, _ = paced(problem(), [0, 2, 4, 6])
    assert [work.steps for work in works] == [50] * 4
    assert all(work.weights == () for work in works)


def test_where_the_loss_hardly_falls_parties_talk_more_and_go_on_along_their_last_two_moves():
    works, _ = paced(problem(), [0, 0.02, 0.04, 0.06, 0.08, 0.1])
    assert [work.steps for work in works] == [50, 25, 12, 6, 4, 4]
    assert [len(work.weights) for work in works] == [0, 1, 2, 2, 2, 2]
    assert all(-1 <= weight <= 3 for work in works for weight in work.weights)


def test_the_sum_that_goes_back_is_that_of_the_point_where_the_steps_begin():
    works, _ = paced(problem(), [0, 0.02])
    expected = logits(0.02) + works[1].weights[0] * (logits(0.02) - logits(0))
    np.testing.assert_allclose(works[1].logits, expected[:, :-1] - expected[:, -1:], atol=1e-6)


def test_a_loss_that_rose_is_answered_by_a_step_back():
    works, _ = paced(problem(), [3, 1])
    assert works[1].weights[0] < 0
    assert works[1].steps == 25


@pytest.mark.parametrize(
    ("confidences", "batches"), [([0, 2, 4, 6, 8], [0, 1, 2, 3, 4]), ([0, 0.02, 0.04, 0.06], [0] * 4)]
)
def test_only_where_local_work_pays_the_next_exchange_is_on_new_rows(confidences, batches):
    divided = problem(rows=50)
    target = TARGET[:50]
    _, paces = paced(divided, confidences, target)
    assert [pace.batch for pace in paces] == batches
    assert [pace.k for pace in paces] == list(range(1, len(confidences) + 1))
    assert bool(paces[-1].trail) == (batches[-1] == 0)


def test_every_batch_is_released_once_however_often_it_is_met():
    assert problem().plan.releases == 1
    divided = problem(rows=50, total_epochs=20, epochs=5).plan
    assert divided.releases == 4
    halves = [divided.released_rows(number) for number in range(4)]
    for first, second in (halves[:2], halves[2:]):
        assert sorted([*first, *second]) == list(range(100)), "a pass meets every row once"
    assert not np.array_equal(halves[0], halves[2]), "in another order in the next pass"


def test_steps_stay_within_their_bounds():
    assert next_steps(40, 0.9, 4, 50) == 50
    assert next_steps(5, 0.0, 4, 50) == 4
    assert next_steps(20, 0.2, 4, 50) == next_steps(20, None, 4, 50) == 20


def test_a_pace_that_is_kept_comes_back_to_the_bit():
    _, paces = paced(problem(), [0, 0.02, 0.05])
    for pace in (Pace(), *paces):
        back = Pace.decoded(pace.encoded())
        assert (back.k, back.batch, back.steps, back.epochs, back.value) == (
            pace.k, pace.batch, pace.steps, pace.epochs, pace.value
        )  # fmt: skip
        assert len(back.trail) == len(pace.trail)
        assert all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(back.trail, pace.trail, strict=True))


def test_labels_take_a_byte_where_each_row_names_a_class():
    assert sent_labels(TARGET, 3).dtype == np.uint8
    np.testing.assert_array_equal(sent_labels(TARGET, 3), LABELS)
    assert sent_labels(np.eye(300, dtype=np.float32), 300).dtype == np.uint32
    np.testing.assert_array_equal(sent_labels(np.array([[0.0], [1.0]]), 1), [0, 1])
    bits = np.array([[1.0, 1.0, 0.0]])
    assert sent_labels(bits, 3) is bits
    real = np.array([[0.5], [1.0]])
    assert sent_labels(real, 1) is real


@pytest.mark.parametrize(
    ("loss", "in_a_row", "in_all"),
    [
        (Softmax(3), 5, 50),
        (RandomisedLabels(6.0, 10).training_loss(Softmax(10)), 5, 47),
        (RandomisedLabels(3.0, 10).training_loss(Softmax(10)), 2, 22),
        (UnaryLabels(1.0, 10).training_loss(Softmax(10)), 1, 20),
        (RandomisedLabels(0.5, 2).training_loss(Logistic()), 1, 20),
    ],
)
def test_the_more_of_the_loss_is_noise_the_fewer_passes_are_made_over_the_same_rows(loss, in_a_row, in_all):
    assert passes(replace(problem(), loss=loss)) == (in_a_row, in_all)


def test_steps_shrink_towards_the_end_of_a_run_by_the_share_of_noise_alone():
    assert [work.step_scale for work in paced(problem(), [0, 2, 4])[0]] == [1.0] * 3
    noisy = replace(problem(), loss=RandomisedLabels(1.0, 3).training_loss(Softmax(3)))
    scales = [work.step_scale for work in paced(noisy, [0, 0.5, 1, 1.5])[0]]
    assert scales[0] == 1.0
    assert all(0 < later < earlier for earlier, later in pairwise(scales))
