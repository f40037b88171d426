"""The settings of `ldp-dsbo-mnist`: parties accept its private run, and its agents have enough images."""

import numpy as np
import pytest

from parley.experiments.fedbio_cleaning import Digits
from parley.experiments.ldp_dsbo_mnist import (
    FULL,
    QUICK,
    make_task,
    private_settings,
    weights_of,
    worst_guarantee,
)


@pytest.mark.parametrize("scale", [QUICK, FULL], ids=["quick", "full"])
def test_the_private_run_costs_an_epsilon_that_parties_accept(scale):
    spent = worst_guarantee(private_settings(scale, 0), weights_of("ring", 0), scale.private_steps)
    assert spent is not None
    assert not spent.vacuous


@pytest.mark.parametrize("scale", [QUICK, FULL], ids=["quick", "full"])
def test_every_agent_has_the_images_that_its_steps_acquire(scale):
    labels = np.random.default_rng(5).integers(0, 10, 60_000)
    images = np.zeros((60_000, 1))
    task = make_task(Digits(images, labels, images[:1], labels[:1]), scale, 0.5, 0)
    needed = max(scale.steps * scale.batch, scale.private_steps * scale.private_batch)
    assert min(len(each) for each in task.labels) >= needed
