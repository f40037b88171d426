"""One level (`problem: joint`), and gradient steps with a memory on y, against torch's optimisers on pooled data."""

import numpy as np
import pytest
import torch

import parley.party.bambi.steps as party_bambi
from tests.oracle.pooled_bambi import relative_error
from tests.oracle.test_bambi_pooled import federation, pooled, settings_for, train

ADAM = {"kind": "adam", "step": 0.02}
HEAVY_BALL = {"kind": "sgd", "step": 0.1, "momentum": 0.7}


def joint_settings(upper, lower, steps=7, batch=25):
    base = settings_for("implicit").model_dump()
    chosen = {name: base[name] for name in ("algorithm", "regularisation", "loss", "model")}
    return type(settings_for("implicit")).model_validate(
        chosen
        | {
            "problem": "joint",
            "upper": {"steps": steps, "batch": batch, "optimiser": upper},
            "lower": {"optimiser": lower},
        }
    )


def torch_optimiser(settings, parameters):
    if settings.kind == "adam":
        return torch.optim.Adam(parameters, lr=settings.step)
    return torch.optim.SGD(parameters, lr=settings.step, momentum=settings.momentum)


def leaves(blocks):
    return [block.detach().clone().requires_grad_() for block in blocks]


def test_without_a_network_joint_training_fits_the_classifier_alone():
    settings = joint_settings(ADAM, ADAM)
    settings = settings.model_copy(
        update={"model": settings.model.model_copy(update={"kind": "identity", "out": 3, "hidden": None})}
    )
    problem, blocks = federation(settings, 2)
    after = train(problem, blocks)
    oracle = pooled(problem, blocks, [party_bambi.start(block) for block in blocks])
    y = leaves(oracle.y)
    steps = torch_optimiser(settings.lower.optimiser, y)
    for k in range(1, settings.upper.steps + 1):
        steps.zero_grad()
        oracle.g(oracle.x, y, problem.plan.upper_rows(k)).backward()
        steps.step()
    assert relative_error([state.y for state in after], [block.detach() for block in y]) < 1e-9


@pytest.mark.parametrize("upper", [ADAM, HEAVY_BALL], ids=["adam", "heavy ball"])
@pytest.mark.parametrize("lower", [ADAM, HEAVY_BALL], ids=["adam", "heavy ball"])
@pytest.mark.parametrize("parties", [2, 3])
def test_joint_training_is_what_torch_does_with_everybody_s_columns(upper, lower, parties):
    settings = joint_settings(upper, lower)
    problem, blocks = federation(settings, parties)
    after = train(problem, blocks)
    oracle = pooled(problem, blocks, [party_bambi.start(block) for block in blocks])
    x, y = leaves(oracle.x), leaves(oracle.y)
    optimisers = [
        torch_optimiser(settings.upper.optimiser, x),
        torch_optimiser(settings.lower.optimiser, y),
    ]
    for k in range(1, settings.upper.steps + 1):
        for optimiser in optimisers:
            optimiser.zero_grad()
        oracle.g(x, y, problem.plan.upper_rows(k)).backward()
        for optimiser in optimisers:
            optimiser.step()
    assert relative_error([state.x for state in after], [block.detach() for block in x]) < 1e-9
    assert relative_error([state.y for state in after], [block.detach() for block in y]) < 1e-9


def test_joint_training_reads_the_rows_of_both_levels_and_releases_each_batch_once():
    problem, blocks = federation(joint_settings(ADAM, ADAM, steps=40, batch=20), 2)
    plan = problem.plan
    assert plan.releases == 40
    read = np.unique(np.concatenate([plan.released_rows(release) for release in range(plan.releases)]))
    assert np.array_equal(read, plan.rows.trained)
    assert len(plan.rows.trained) > len(plan.rows.lower)
    train(problem, blocks)


@pytest.mark.parametrize("optimiser", [ADAM, HEAVY_BALL], ids=["adam", "heavy ball"])
def test_lower_steps_with_a_memory_are_torch_s(optimiser):
    lower = {"solver": "sgd", "steps": 6, "batch": 20, "optimiser": optimiser}
    settings = settings_for("implicit", lower=lower, upper={"steps": 1})
    problem, blocks = federation(settings, 3)
    after = train(problem, blocks)
    oracle = pooled(problem, blocks, [party_bambi.start(block) for block in blocks])
    y = leaves(oracle.y)
    steps = torch_optimiser(settings.lower.optimiser, y)
    for t in range(settings.lower.steps):
        steps.zero_grad()
        oracle.g(oracle.x, y, oracle.lower_rows(1, t)).backward()
        steps.step()
    assert relative_error([state.y for state in after], [block.detach() for block in y]) < 1e-9


def test_every_perturbed_trajectory_has_a_memory_of_its_own():
    """At μ → 0 the trajectories are one, and so must their memories be."""
    lower = {"solver": "sgd", "steps": 4, "batch": 20, "optimiser": ADAM}
    settings = settings_for("zeroth_order", lower=lower, zeroth_order={"directions": 3, "smoothing": 1e-12})
    problem, blocks = federation(settings, 2)
    seen = []
    original = party_bambi._lower_step

    def watched(*given):
        found = original(*given)
        seen.append(found)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(party_bambi, "_lower_step", watched)
        train(problem, blocks)
    for y, moments in seen:
        assert y.shape == moments.first.shape
        assert np.allclose(y, y[:1], atol=1e-9)
        assert np.allclose(moments.second, moments.second[:1], atol=1e-9)
