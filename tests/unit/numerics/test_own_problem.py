"""A problem of one's own that cannot work is refused before it meets data, with a reason."""

import math

import numpy as np
import pytest
import torch

from parley.numerics.losses import (
    ForwardCorrectedBits,
    ForwardCorrectedLogistic,
    ForwardCorrectedSoftmax,
    Logistic,
    clean_loss,
    unbiased_target,
)
from parley.numerics.own_problem import Given, LabelProblem, Sizes
from parley.numerics.problem_errors import ProblemImportRefused, ProblemMisshapen, ProblemNotFinite
from parley.party.bambi.own_block import load_block

SIZES = Sizes(20, 1, ("no", "yes"))
HERE = "tests.unit.numerics.test_own_problem"


class Sound:
    """Works."""

    def __init__(self, sizes, *, factor: float = 1.0):
        self._factor = factor

    def variables(self):
        return {"a": torch.zeros((), dtype=torch.float64)}

    def lower(self, variables, batch):
        return self._factor * (variables["a"].exp() * batch.losses).mean()

    def upper(self, variables, batch):
        return batch.losses.mean()


class OneArgument(Sound):
    def lower(self, batch):
        return batch.losses.mean()


class ManyNumbers(Sound):
    def upper(self, variables, batch):
        return batch.losses


class PlainNumber(Sound):
    def upper(self, variables, batch):
        return 3.0


class Detached(Sound):
    def lower(self, variables, batch):
        return variables["a"].exp() * batch.losses.detach().mean()


class Rounded(Sound):
    def upper(self, variables, batch):
        return (batch.h > 0).double().mean()


class Unmoved(Sound):
    def lower(self, variables, batch):
        return batch.losses.mean()


class Infinite(Sound):
    def lower(self, variables, batch):
        return torch.log(variables["a"]) * batch.losses.mean()


class Random(Sound):
    def lower(self, variables, batch):
        return super().lower(variables, batch) * (1 + torch.rand(()))


class NoUpper:
    def __init__(self, sizes):
        pass

    def variables(self):
        return {}

    def lower(self, variables, batch):
        return batch.losses.mean()


class OddVariables(Sound):
    def variables(self):
        return [1.0]


class Broken(Sound):
    def lower(self, variables, batch):
        return variables["b"] * batch.losses.mean()


A_NUMBER = 3


def load(name, options=None, allowed=None):
    path = f"{HERE}:{name}"
    return LabelProblem.load(path, options or {}, SIZES, Logistic(), {path} if allowed is None else allowed)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("OneArgument", "must take 2 arguments"),
        ("ManyNumbers", "must return one number as a tensor, not a tensor of shape"),
        ("PlainNumber", "not a float"),
        ("Detached", r"lower\(\) is not differentiable by batch.h"),
        ("Rounded", r"upper\(\) is not differentiable by batch.h"),
        ("Unmoved", "nothing to learn"),
        ("Infinite", "infinite or undefined"),
        ("Random", "other numbers when it is asked again"),
        ("NoUpper", r"no method upper\(\)"),
        ("OddVariables", "dictionary of tensors"),
        ("Broken", r"lower\(\) fails"),
        ("A_NUMBER", "is a int"),
    ],
)
def test_a_problem_that_cannot_work_is_refused_with_its_reason(name, reason):
    with pytest.raises(ProblemMisshapen, match=reason):
        load(name)


def test_a_path_that_is_not_allowed_is_not_imported(tmp_path, monkeypatch):
    (tmp_path / "evil_problem.py").write_text("open('was_here', 'w')\nclass P: pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ProblemImportRefused, match="does not allow"):
        LabelProblem.load("evil_problem:P", {}, SIZES, Logistic(), {"other:P"})
    assert not (tmp_path / "was_here").exists()


def test_a_path_that_is_not_there_and_options_that_do_not_fit_are_told():
    with pytest.raises(ProblemImportRefused, match="install the package"):
        load("Missing")
    with pytest.raises(ProblemMisshapen, match="correct `options`"):
        load("Sound", {"speed": 3})
    assert load("Sound", {"factor": 2.0}).value(
        "lower", np.zeros(1), Given(np.zeros((2, 1)), np.ones((2, 1)), np.arange(2), np.empty((2, 0)))
    ) == pytest.approx(2 * math.log(2))


def test_a_derivative_that_becomes_infinite_while_a_run_goes_on_is_named():
    problem = load("Sound")
    given = Given(np.full((2, 1), np.nan), np.ones((2, 1)), np.arange(2), np.empty((2, 0)))
    with pytest.raises(ProblemNotFinite, match="Sound"):
        problem.gradient("lower", np.zeros(1), given)


class Block:
    """A party's side that works."""

    def __init__(self, features):
        self.out = features

    def variables(self):
        return {"gates": torch.zeros(self.out, dtype=torch.float64)}

    def embed(self, variables, features):
        return features * variables["gates"].sigmoid()


class WrongWidth(Block):
    def embed(self, variables, features):
        return features[:, :1]


class NoDerivative(Block):
    def embed(self, variables, features):
        return features * variables["gates"].detach()


class NegativePenalty(Block):
    def regularisation(self, variables):
        return -variables["gates"].exp()


class NoWidth(Block):
    def __init__(self, features):
        self.out = "all"


def test_a_party_s_side_that_works_is_taken_with_and_without_intercept():
    path = f"{HERE}:Block"
    for intercept in (True, False):
        block = load_block(path, {}, 3, torch.float32, {path}, intercept=intercept)
        assert block.out == 3 + intercept
        assert block.apply(block.initial(np.random.default_rng(0)), torch.ones(2, 3)).shape == (2, 3 + intercept)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("WrongWidth", "must return 3 columns"),
        ("NoDerivative", "not differentiable"),
        ("NegativePenalty", "positive and finite"),
        ("NoWidth", "`out` must be"),
        ("Sound", r"has variables\(\) and embed"),
    ],
)
def test_a_party_s_side_that_cannot_work_is_refused_with_its_reason(name, reason):
    path = f"{HERE}:{name}"
    with pytest.raises(ProblemMisshapen, match=reason):
        load_block(path, {}, 3, torch.float64, {path}, intercept=False)


def test_a_party_refuses_code_that_its_policy_does_not_name():
    with pytest.raises(ProblemImportRefused, match="party does not allow"):
        load_block(f"{HERE}:Block", {}, 3, torch.float64, (), intercept=False)


def test_target_rows_are_unbiased_whatever_the_mechanism():
    keep, rows = 0.7, np.eye(3)
    table = np.full((3, 3), (1 - keep) / 2) + np.eye(3) * (keep - (1 - keep) / 2)
    softmax = ForwardCorrectedSoftmax(table)
    expected = sum(table[noisy][:, None] * unbiased_target(softmax, rows[[noisy]]) for noisy in range(3))
    assert np.allclose(expected, rows)
    logistic = ForwardCorrectedLogistic(0.2)
    assert np.allclose([0.8 * unbiased_target(logistic, np.ones(1)) + 0.2 * unbiased_target(logistic, np.zeros(1))], 1)
    bits = ForwardCorrectedBits(3, 0.6, 0.1)
    assert np.allclose(unbiased_target(bits, np.array([[0.6, 0.1, 0.1]])), [[1, 0, 0]])
    assert np.array_equal(unbiased_target(clean_loss("softmax", 3), rows), rows)
