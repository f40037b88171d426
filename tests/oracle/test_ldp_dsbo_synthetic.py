"""The claims about LDP-DSBO's synthetic task, at one seed."""

import pytest

from parley.experiments.ldp_dsbo_synthetic import (
    NOISY_STEPS,
    PRINTED,
    PRIVATE_SIGMA,
    PRIVATE_STEPS,
    best_ma_dsbo,
    make_task,
    private_task,
    train,
    worst_guarantee,
)


@pytest.mark.slow
def test_the_printed_setting_reaches_its_accuracy_and_beats_the_published_baseline_and_its_epsilon_is_vacuous():
    task = make_task(0, size=200, batch_size=50, bounds=PRINTED)
    noised = task.accuracies(train(task, NOISY_STEPS, 1.0, 0)).mean()
    clear = task.accuracies(train(task, NOISY_STEPS, None, 0)).mean()
    baseline = task.accuracies(best_ma_dsbo(task, 0, noise=True, history=False)[0]).mean()
    assert noised >= 0.955
    assert clear >= 0.975
    assert noised - baseline >= 0.012
    assert worst_guarantee(task, NOISY_STEPS, 1.0).vacuous


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_a_real_epsilon_and_a_useful_model_go_together_on_seeds_that_chose_no_setting(seed):
    task = private_task(seed)
    spent = worst_guarantee(task, PRIVATE_STEPS, PRIVATE_SIGMA)
    assert spent.epsilon < 1.5
    assert task.accuracies(train(task, PRIVATE_STEPS, PRIVATE_SIGMA, seed)).min() > 0.93
