"""A problem of one's own, run by its roles in one process, against dense implicit differentiation on pooled data."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import parley.coordinator.bambi.problem as coordinator_bambi
import parley.party.bambi.steps as party_bambi
from parley.coordinator.bambi.own_problem import NotConvex, OwnProblem
from parley.coordinator.bambi.program import BambiProgram
from parley.numerics.losses import clean_loss
from parley.numerics.own_problem import Batch, LabelProblem, Sizes
from parley.numerics.streams import directions
from parley.party.bambi.models import build_model
from parley.party.bambi.own_block import load_block
from parley.party.bambi.role import BambiRole
from parley.privacy.release import NotPaid, OutcomeGate
from parley.protocols.bambi.codec import PROTOCOL
from parley.protocols.bambi.messages import CurvatureStep
from parley.protocols.bambi.settings import BambiSpec
from parley.simulation import Simulation
from parley.spec.rows import RowSets

SEED, ROWS, COLUMNS, PARTIES = 11, 60, 3, 3
SHIPPED = "parley.numerics.problems."
LABEL_SIDES = {
    "sample_weights": {"path": f"{SHIPPED}sample_weights:SampleWeights", "options": {"prior": 0.3}},
    "class_weights": {"path": f"{SHIPPED}class_weights:ClassWeights"},
    "fairness": {"path": f"{SHIPPED}fairness:FairScores", "options": {"price": 3.0}},
    "opportunity": {
        "path": f"{SHIPPED}fairness:FairScores",
        "options": {"price": 3.0, "criterion": "equal_opportunity"},
    },
    "learned_loss": {"path": f"{SHIPPED}learned_loss:LearnedLoss"},
}
GATES = {"path": f"{SHIPPED}feature_selection:FeatureGates", "options": {"price": 0.05}}
RELEVANCE = {"path": "tests.oracle.test_own_problem:Relevance"}
BENT = {"path": "tests.oracle.test_own_problem:Bent"}


class Relevance:
    """A party's side with coefficients of its own: automatic relevance, over an embedding that is not linear."""

    def __init__(self, features):
        self.out = 2
        self._features = features

    def variables(self):
        weight = torch.linspace(-0.7, 0.9, 2 * self._features, dtype=torch.float64).reshape(2, -1)
        return {"weight": weight, "relevance": torch.tensor([-4.0, -3.0], dtype=torch.float64)}

    def embed(self, variables, features):
        return torch.tanh(features @ variables["weight"].T)

    def regularisation(self, variables):
        return variables["relevance"].exp()

    def upper(self, variables):
        return 0.1 * variables["weight"].square().sum()


class Bent:
    """A label side that is no sum over rows, with a variable in both levels."""

    def __init__(self, sizes):
        self._sizes = sizes

    def variables(self):
        return {"a": torch.tensor(0.3, dtype=torch.float64), "b": torch.zeros(self._sizes.outputs, dtype=torch.float64)}

    def lower(self, variables, batch):
        return batch.losses.mean() + variables["a"].exp() * (batch.h - variables["b"]).mean(0).square().sum()

    def upper(self, variables, batch):
        return torch.logsumexp(batch.losses, 0) + variables["b"].square().sum() + variables["a"].square()


def settings_for(label=None, party=None, mode="implicit", loss="softmax", **changes):
    base = {
        "algorithm": "bambi",
        "problem": "own",
        "own": {key: side for key, side in (("label_side", label), ("party_side", party)) if side},
        "hypergradient": mode,
        "regularisation": 1e-2,
        "loss": loss,
        "upper": {"steps": 1, "batch": None, "optimiser": {"step": 1.0}},
        "lower": {"solver": "newton", "steps": 15}
        if mode == "implicit"
        else {"solver": "sgd", "steps": 5, "optimiser": {"step": 0.3}},
        "zeroth_order": {"directions": 3, "smoothing": 1e-4, "jacobian_clip": None},
        "implicit": {"rounds": 40, "newton_rounds": 40, "tolerance": 1e-14, "adjoint_clip": None},
    }
    return BambiSpec.model_validate(base | changes)


class Exact:
    """Exact targets, or attributes."""

    def __init__(self, array):
        self.array = array

    def target(self, release, rows):
        return self.array[rows]

    def score(self, rows, h):
        return {"loss": 0.0}


class Task:
    """The same problem twice: as the product runs it, and as one function of everything."""

    def __init__(self, settings):
        self.settings = settings
        draw = np.random.default_rng(5)
        shared = draw.standard_normal((ROWS, COLUMNS))
        features = [0.8 * shared + 0.6 * draw.standard_normal((ROWS, COLUMNS)) for _ in range(PARTIES)]
        outputs = 1 if settings.loss == "logistic" else 3
        labels = draw.integers(max(outputs, 2), size=ROWS)
        target = labels[:, None].astype(float) if outputs == 1 else np.eye(outputs)[labels]
        groups = np.eye(2)[draw.integers(2, size=ROWS)]
        sets = RowSets(np.arange(40), np.arange(40, ROWS), np.arange(0))
        self.rows, self.outputs = sets, outputs
        loss, own = clean_loss(settings.loss, outputs), settings.own
        side = own.label_side
        self.problem = None
        if side is not None:
            sizes = Sizes(ROWS, outputs, tuple("abc"[: max(outputs, 2)]), ("x", "y"))
            self.problem = LabelProblem.load(side.path, side.options, sizes, loss, {BENT["path"]})
        self.own = None if self.problem is None else OwnProblem(self.problem, settings, SEED, Exact(groups))
        models = [self._model(m) for m in range(PARTIES)]
        sizes = tuple(model.size for model in models)
        self.blocks = [
            party_bambi.Block(settings, model, a, sets, SEED, m, sizes, outputs)
            for m, (model, a) in enumerate(zip(models, features, strict=True))
        ]
        plan = coordinator_bambi.Plan(settings, sets, SEED)
        self.federated = coordinator_bambi.Problem(plan, loss, Exact(target), outputs, "float64", 0, 0, own=self.own)
        self.features, self.models = [torch.from_numpy(a) for a in features], models
        self.target, self.groups = torch.from_numpy(target), torch.from_numpy(groups)
        self.starts = [party_bambi.start(block) for block in self.blocks]
        w = torch.empty(0, dtype=torch.float64) if self.problem is None else torch.from_numpy(self.problem.initial)
        self.sizes = [len(w), *(len(state.x) for state in self.starts)]
        self.upper = torch.cat([w, *(state.x for state in self.starts)])
        self.shapes = [state.y.shape for state in self.starts]

    def _model(self, m):
        side = self.settings.own.party_side
        if side is not None:
            allowed = {RELEVANCE["path"]}
            return load_block(side.path, side.options, COLUMNS, torch.float64, allowed, intercept=m == 0)
        return build_model("identity", COLUMNS, COLUMNS, dtype=torch.float64)

    def run(self):
        """The step that the federation made on everything upper, and the lower solution."""
        program = BambiProgram(self.federated, OutcomeGate(lambda _: True))
        states = Simulation(PROTOCOL, program, [BambiRole(block) for block in self.blocks]).run().states
        w = [] if self.own is None else [torch.from_numpy(self.own.upper.w)]
        after = torch.cat([*w, *(state.x for state in states)])
        return self.upper - after, torch.cat([torch.from_numpy(state.y).reshape(-1) for state in states])

    def objectives(self, upper, y, rows):
        """The two objectives of everything upper and lower on these rows, from the same plain functions."""
        w, *x = upper.split(self.sizes)
        parts = y.split([a * b for a, b in self.shapes])
        ys = [part.reshape(shape) for part, shape in zip(parts, self.shapes, strict=True)]
        h = sum(
            model.apply(point, a[rows]) @ block
            for model, point, a, block in zip(self.models, x, self.features, ys, strict=True)
        )
        target = self.target[rows]
        if self.outputs == 1:
            losses = torch.nn.functional.binary_cross_entropy_with_logits(h, target, reduction="none")[:, 0]
        else:
            losses = -(target * h.log_softmax(1)).sum(1)
        lower = upper_value = losses.mean()
        if self.problem is not None:
            batch = Batch(h, target, losses, torch.from_numpy(rows), self.groups[rows])
            named = self.problem.layout.named(w)
            lower, upper_value = self.problem.made.lower(named, batch), self.problem.made.upper(named, batch)
        for model, point, block in zip(self.models, x, ys, strict=True):
            coefficients = self.settings.regularisation
            if self.settings.own.party_side is not None:
                coefficients = model.penalty(point, coefficients)
                if hasattr(model.made, "upper"):
                    upper_value = upper_value + model.made.upper(model._tensors(point))
            lower = lower + (coefficients * block.square()).sum()
        return lower, upper_value

    def solved(self):
        y = torch.zeros(sum(a * b for a, b in self.shapes), dtype=torch.float64)
        g = lambda v: self.objectives(self.upper, v, self.rows.lower)[0]  # noqa: E731
        for _ in range(10):
            step = torch.linalg.solve(torch.func.hessian(g)(y), torch.func.grad(g)(y))
            y = y - step
        return y

    def hypergradient(self, y):
        upper, leaf = self.upper.clone().requires_grad_(), y.clone().requires_grad_()
        direct, weight = torch.autograd.grad(
            self.objectives(upper, leaf, self.rows.upper)[1], (upper, leaf), allow_unused=True, materialize_grads=True
        )
        g = lambda v: self.objectives(self.upper, v, self.rows.lower)[0]  # noqa: E731
        v = torch.linalg.solve(torch.func.hessian(g)(y), weight)
        (slope,) = torch.autograd.grad(self.objectives(upper, leaf, self.rows.lower)[0], leaf, create_graph=True)
        (cross,) = torch.autograd.grad((slope * v).sum(), upper, allow_unused=True, materialize_grads=True)
        return direct - cross


def relative_error(found, exact):
    return float((found - exact).norm() / exact.norm())


@pytest.mark.parametrize("loss", ["softmax", "logistic"])
@pytest.mark.parametrize("name", LABEL_SIDES)
def test_the_hypergradient_of_every_shipped_label_side_is_that_of_pooled_autograd(name, loss):
    task = Task(settings_for(LABEL_SIDES[name], loss=loss))
    step, y = task.run()
    solution = task.solved()
    assert relative_error(y, solution) < 1e-7
    exact = task.hypergradient(solution)
    assert exact.norm() > 1e-4
    assert relative_error(step, exact) < 1e-6


@pytest.mark.parametrize("label", [None, LABEL_SIDES["class_weights"], BENT])
@pytest.mark.parametrize("party", [GATES, RELEVANCE])
def test_variables_of_parties_and_of_the_label_holder_move_together(party, label):
    task = Task(settings_for(label, party))
    step, _ = task.run()
    assert relative_error(step, task.hypergradient(task.solved())) < 1e-6


def test_an_objective_that_is_no_sum_over_rows_is_differentiated_too():
    task = Task(settings_for(BENT))
    step, _ = task.run()
    assert relative_error(step, task.hypergradient(task.solved())) < 1e-6


def test_one_gradient_step_and_one_system_of_a_single_loop_are_those_of_pooled_autograd():
    """Single loop: y makes one gradient step, and the hyper-gradient is taken where it stands."""
    settings = settings_for(
        LABEL_SIDES["class_weights"], lower={"solver": "sgd", "steps": 1, "optimiser": {"step": 0.3}}
    )
    task = Task(settings)
    step, y = task.run()
    zero = torch.zeros_like(y)
    slope = torch.autograd.functional.jacobian(lambda v: task.objectives(task.upper, v, task.rows.lower)[0], zero)
    assert relative_error(y, zero - 0.3 * slope) < 1e-9
    assert relative_error(step, task.hypergradient(y)) < 1e-6


@pytest.mark.parametrize("name", ["class_weights", "learned_loss"])
def test_with_as_many_directions_as_variables_zeroth_order_is_the_derivative_through_the_steps(name):
    size = {"class_weights": 3, "learned_loss": 2}[name]
    zeroth = {"directions": size, "smoothing": 1e-6, "jacobian_clip": None}
    task = Task(settings_for(LABEL_SIDES[name], mode="zeroth_order", zeroth_order=zeroth))
    step, _ = task.run()

    def through(upper):
        y = torch.zeros(sum(a * b for a, b in task.shapes), dtype=torch.float64, requires_grad=True)
        for _ in range(5):
            (slope,) = torch.autograd.grad(task.objectives(upper, y, task.rows.lower)[0], y, create_graph=True)
            y = y - 0.3 * slope
        return task.objectives(upper, y, task.rows.upper)[1]

    leaf = task.upper.clone().requires_grad_()
    (exact,) = torch.autograd.grad(through(leaf), leaf)
    assert relative_error(step, exact) < 1e-4
    assert len(directions(SEED, 1, size, size, name="directions/label side")) == size


def test_a_party_s_gates_move_in_zeroth_order_as_the_steps_say():
    zeroth = {"directions": 9, "smoothing": 1e-6, "jacobian_clip": None}
    task = Task(settings_for(party=GATES, mode="zeroth_order", zeroth_order=zeroth))
    step, _ = task.run()
    base = task.upper.clone().requires_grad_()
    y = torch.zeros(sum(a * b for a, b in task.shapes), dtype=torch.float64, requires_grad=True)
    for _ in range(5):
        (slope,) = torch.autograd.grad(task.objectives(base, y, task.rows.lower)[0], y, create_graph=True)
        y = y - 0.3 * slope
    (exact,) = torch.autograd.grad(task.objectives(base, y, task.rows.upper)[1], base)
    assert relative_error(step, exact) < 1e-4


class Concave:
    """No minimum."""

    def __init__(self, sizes):
        pass

    def variables(self):
        return {"a": torch.ones(1, dtype=torch.float64)}

    def lower(self, variables, batch):
        return -variables["a"].sum() * batch.losses.mean()

    def upper(self, variables, batch):
        return batch.losses.mean()


def test_a_lower_objective_without_a_minimum_is_named():
    task = Task(settings_for(LABEL_SIDES["class_weights"]))
    task.own._problem = LabelProblem.load(
        "tests.oracle.test_own_problem:Concave",
        {},
        Sizes(ROWS, 3, tuple("abc")),
        clean_loss("softmax", 3),
        {"tests.oracle.test_own_problem:Concave"},
    )
    task.own.begin()
    with pytest.raises(NotConvex, match="curves downwards"):
        task.run()


def longer(label, party):
    """Four upper steps with a checkpoint after each second one."""
    task = Task(
        settings_for(
            label,
            party,
            upper={"steps": 4, "batch": 12, "optimiser": {"kind": "adam", "step": 0.1}},
            lower={"solver": "newton", "steps": 1},
            implicit={"rounds": 4, "newton_rounds": 4},
        )
    )
    task.federated = replace(task.federated, checkpoint_every=2)
    return task


def test_a_run_that_is_resumed_ends_with_the_same_bits_on_both_sides():
    whole, again = (longer(LABEL_SIDES["sample_weights"], GATES) for _ in range(2))
    runs = [
        Simulation(
            PROTOCOL,
            BambiProgram(task.federated, OutcomeGate(lambda _: True)),
            [BambiRole(block) for block in task.blocks],
        )
        for task in (whole, again)
    ]
    first = runs[0].run()
    second = runs[1].run(resume=first.checkpoints[2])
    assert np.array_equal(whole.own.upper.w, again.own.upper.w)
    for one, other in zip(first.states, second.states, strict=True):
        assert torch.equal(one.x, other.x)
        assert np.array_equal(one.y, other.y)
    assert 4 in first.checkpoints, "the last variables are kept"


def test_curvature_with_labels_in_it_leaves_only_as_a_release_that_is_paid_for():
    """The loss's own curvature has no label in it and says so; that of one's own objective names its release."""
    for label, expected in ((LABEL_SIDES["class_weights"], True), (None, False)):
        task, sent = longer(label, None if label else GATES), []
        gate = OutcomeGate(lambda _: True)
        release = gate.release

        def noted(draft, release=release, sent=sent):
            if isinstance(draft.outcome, CurvatureStep):
                sent.append(draft.label_release)
            return release(draft)

        gate.release = noted
        Simulation(PROTOCOL, BambiProgram(task.federated, gate), [BambiRole(block) for block in task.blocks]).run()
        assert sent
        assert all((number is not None) == expected for number in sent)
    unpaid = longer(LABEL_SIDES["class_weights"], None)
    with pytest.raises(NotPaid):
        Simulation(
            PROTOCOL,
            BambiProgram(unpaid.federated, OutcomeGate(lambda _: False)),
            [BambiRole(block) for block in unpaid.blocks],
        ).run()
