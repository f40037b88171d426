"""What a run of BAMBI releases about labels, before it starts and while it runs."""

import itertools

import numpy as np
import pytest

from parley.coordinator.bambi.problem import Diverged, Plan, Problem
from parley.coordinator.bambi.rounds import BilevelRounds
from parley.numerics.limbs import to_limbs
from parley.numerics.losses import Softmax
from parley.protocols.bambi.messages import CurvatureForward, LowerForward, UpperForward
from parley.protocols.bambi.settings import BambiSpec
from parley.spec.rows import RowSets

BATCH, CLASSES = 8, 3
COLUMNS = CLASSES - 1
"""Of a sum: the last class does not cross."""
ROWS = RowSets(np.arange(40), np.arange(40, 60), np.arange(0))


class Watched:
    """A label gate that writes down which records each release is about."""

    def __init__(self):
        self.asked = []

    def target(self, release, rows):
        self.asked.append((release, tuple(rows)))
        return np.eye(CLASSES)[rows % CLASSES]

    def score(self, rows, h):
        return {}


def plan_of(mode, solver, *, steps, warmup=0, final=0):
    settings = BambiSpec.model_validate(
        {
            "algorithm": "bambi",
            "hypergradient": mode,
            "upper": {"steps": 3, "batch": BATCH},
            "lower": {"solver": solver, "steps": steps, "batch": BATCH, "warmup_steps": warmup, "final_steps": final},
            "implicit": {"rounds": 2, "newton_rounds": 2},
        }
    )
    return Plan(settings, ROWS, seed=4)


def releases_of(plan):
    """Drive the generator with arbitrary sums; which releases it asked for, and which rounds carried one."""
    labels = Watched()
    problem = Problem(plan, Softmax(CLASSES), labels, CLASSES, "float64", 0, 0)
    rounds = BilevelRounds(problem).rounds(0, lambda report: None)
    rng = np.random.default_rng(0)
    current, carried = next(rounds), []
    while True:
        scalars = np.array([1.0, 1.0])
        trajectories = plan.settings.trajectories
        match current.ask:
            case LowerForward(k=k):
                stack = 1 if k in (0, plan.settings.upper.steps + 1) else trajectories
                sums = rng.standard_normal(stack * BATCH * COLUMNS)
                if plan.settings.lower.solver == "newton":
                    sums = np.concatenate([sums, scalars])
            case UpperForward():
                sums = rng.standard_normal(BATCH * COLUMNS)
            case CurvatureForward():
                sums = np.concatenate([rng.standard_normal(BATCH * COLUMNS), *to_limbs(scalars)])
            case _:
                sums = rng.standard_normal(plan.settings.zeroth_order.directions)
        carried.append(current.label_release)
        try:
            current = rounds.send(sums)
        except StopIteration:
            return labels.asked, carried


@pytest.mark.parametrize(
    ("mode", "solver"),
    [("implicit", "newton"), ("implicit", "sgd"), ("zeroth_order", "sgd"), ("zeroth_order_local", "sgd")],
)
@pytest.mark.parametrize("ends", [0, 2])
def test_a_run_makes_exactly_the_releases_that_its_plan_announced(mode, solver, ends):
    plan = plan_of(mode, solver, steps=3, warmup=ends, final=ends)
    asked, carried = releases_of(plan)
    assert {release for release, _ in asked} == set(range(plan.releases))
    assert all(rows == tuple(plan.released_rows(release)) for release, rows in asked)
    assert {release for release in carried if release is not None} == set(range(plan.releases))


@pytest.mark.parametrize("steps", [1, 5])
def test_every_newton_step_of_an_iteration_is_made_from_one_draw_of_its_batch(steps):
    plan = plan_of("implicit", "newton", steps=steps)
    assert plan.releases_per_iteration == 2
    asked, _ = releases_of(plan)
    assert len(asked) == 3 * (steps + 2)
    assert len(set(asked)) == 3 * 2


def test_a_gradient_step_on_a_new_batch_is_a_release_of_its_own():
    assert plan_of("zeroth_order", "sgd", steps=5).releases_per_iteration == 6
    assert plan_of("implicit", "sgd", steps=5).releases_per_iteration == 7


@pytest.mark.parametrize(
    ("good_sums", "sentence"),
    [(0, r"first lower step.*standardised"), (4, r"diverged at upper step 2, lower step \d.*Lower train\.lower")],
)
def test_sums_that_no_classifier_needs_are_called_unscaled_features_or_divergence(good_sums, sentence):
    plan = plan_of("zeroth_order_local", "sgd", steps=4, warmup=0, final=0)
    problem = Problem(plan, Softmax(CLASSES), Watched(), CLASSES, "float64", 0, 0)
    with pytest.raises(Diverged, match=sentence):
        drive(BilevelRounds(problem).rounds(0, lambda report: None), plan.settings.trajectories, good_sums)


def drive(rounds, trajectories, good_sums):
    """Answer so many rounds with small sums, and the lower ones after them with huge ones."""
    current = next(rounds)
    for answered in itertools.count():
        lower = isinstance(current.ask, LowerForward)
        value = 1e4 if lower and answered >= good_sums else 1.0
        current = rounds.send(np.full((trajectories if lower else 1) * BATCH * COLUMNS, value))
