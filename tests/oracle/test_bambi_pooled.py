"""BAMBI's role code, driven in one process, against autograd on the pooled data."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import parley.coordinator.bambi.problem as coordinator_bambi
import parley.party.bambi.steps as party_bambi
from parley.coordinator.bambi.program import BambiProgram
from parley.numerics.losses import Softmax, Squared
from parley.party.bambi.lower_system import IllConditioned
from parley.party.bambi.models import build_model
from parley.party.bambi.role import BambiRole
from parley.privacy.release import OutcomeGate
from parley.protocols.bambi.codec import PROTOCOL
from parley.protocols.bambi.settings import BambiSpec
from parley.simulation import Simulation
from parley.simulation.sums import protected_sums
from parley.spec.protection import AggregationSpec
from parley.spec.rows import RowSets
from tests.oracle.pooled_bambi import Pooled, cosine, relative_error

SEED = 11


class TrueLabels:
    """Exact targets: what the pooled oracle uses."""

    def __init__(self, target):
        self.array = target

    def target(self, release, rows):
        return self.array[rows]

    def score(self, rows, h):
        return {"loss": 0.0}


def federation(settings, parties, *, rows=60, columns=3, outputs=3, correlated=0.8):
    rng = np.random.default_rng(5)
    outputs = 1 if settings.loss == "squared" else outputs
    shared = rng.standard_normal((rows, columns))
    blocks = [
        correlated * shared + np.sqrt(1 - correlated**2) * rng.standard_normal((rows, columns)) for _ in range(parties)
    ]
    if settings.loss == "squared":
        weights = rng.standard_normal((columns * parties, outputs))
        target = np.concatenate(blocks, 1) @ weights + 0.5 * rng.standard_normal((rows, outputs))
    else:
        target = np.eye(outputs)[rng.integers(outputs, size=rows)]
    sets = RowSets(np.arange(40), np.arange(40, rows), np.arange(0))
    loss = Squared() if settings.loss == "squared" else Softmax(outputs)
    model = settings.model
    if settings.problem == "hyper_parameters":
        network = build_model("identity", columns, columns, dtype=torch.float64)
    else:
        network = build_model(model.kind, columns, model.out, model.widths, model.activation, dtype=torch.float64)
    size = party_bambi.upper_size(settings, network)
    parties_ = [
        party_bambi.Block(settings, network, a, sets, SEED, m, (size,) * parties, outputs) for m, a in enumerate(blocks)
    ]
    problem = coordinator_bambi.Problem(
        coordinator_bambi.Plan(settings, sets, SEED),
        loss,
        TrueLabels(target),
        outputs,
        "float64",
        evaluate_every=0,
        checkpoint_every=0,
    )
    return problem, parties_


class Prefetching(BambiRole):
    """A party that embeds the next lower batch whenever it can."""

    def plan(self, state, instruction):
        plan = super().plan(state, instruction)
        return replace(plan, state=self.prefetch(plan.state)) if self.can_prefetch(plan.state) else plan


def train(problem, blocks, role=BambiRole, sums=None):
    """The parties' states at the end."""
    program = BambiProgram(problem, OutcomeGate(lambda _: True))
    return Simulation(PROTOCOL, program, [role(block) for block in blocks], sums).run().states


def pooled(problem, blocks, states):
    embeds = [block.model.apply if block.has_direct_term else (lambda x, a: a) for block in blocks]
    return Pooled(
        problem.settings,
        [torch.from_numpy(block.features) for block in blocks],
        torch.from_numpy(problem.labels.array),
        problem.plan.rows,
        SEED,
        embeds,
        [s.x for s in states],
        [torch.from_numpy(s.y) for s in states],
    )


def settings_for(mode, problem="hyper_representation", **changes):
    base = {
        "algorithm": "bambi",
        "problem": problem,
        "hypergradient": mode,
        "regularisation": 1e-2,
        "loss": "softmax" if problem == "hyper_representation" else "squared",
        "model": {"kind": "mlp", "hidden": [4], "out": 3, "activation": "tanh"},
        "upper": {"steps": 1, "batch": None, "optimiser": {"step": 1.0}},
        "lower": {
            "solver": "newton" if mode == "implicit" else "sgd",
            "steps": 12 if mode == "implicit" else 5,
            "batch": None,
            "optimiser": {"step": 0.5 if mode == "implicit" else 0.3},
        },
        "zeroth_order": {"directions": 3, "smoothing": 1e-4, "jacobian_clip": None},
        "implicit": {"rounds": 30, "newton_rounds": 30, "tolerance": 1e-14, "adjoint_clip": None},
    }
    for key, value in changes.items():
        base[key] = {**base[key], **value} if isinstance(value, dict) else value
    return BambiSpec.model_validate(base)


@pytest.mark.parametrize(
    ("mode", "embedded"),
    # Lower rounds: 2 of warm-up, 3 iterations of 5 (and one that linearises), 2 at the end; the first of each is new.
    [("zeroth_order", 1 + 3 * 4 + 1), ("implicit", 1 + 3 * 5 + 1)],
)
def test_prefetching_changes_no_bit_and_embeds_every_batch_once(mode, embedded, monkeypatch):
    lower = {"solver": "sgd", "steps": 5, "batch": 8, "warmup_steps": 2, "final_steps": 2}
    settings = settings_for(mode, lower=lower, upper={"steps": 3, "batch": 8})
    (problem, blocks), calls = federation(settings, 2), []
    plain = train(problem, blocks)
    embed, ahead = party_bambi._lower_embedding, party_bambi.prefetch
    monkeypatch.setattr(party_bambi, "_lower_embedding", lambda *given: calls.append(given[2:]) or embed(*given))
    monkeypatch.setattr(party_bambi, "prefetch", lambda *given: calls.append("ahead") or ahead(*given))
    early = train(problem, blocks, Prefetching)
    for one, other in zip(plain, early, strict=True):
        assert torch.equal(one.x, other.x)
        assert np.array_equal(one.y, other.y)
    assert calls.count("ahead") == 2 * embedded
    batches = [call for call in calls if call != "ahead"]
    assert len(batches) == 2 * len(set(batches))


@pytest.mark.parametrize("problem_kind", ["hyper_representation", "hyper_parameters"])
@pytest.mark.parametrize("mode", ["zeroth_order", "zeroth_order_local"])
@pytest.mark.parametrize("parties", [2, 4])
def test_a_zeroth_order_step_equals_the_step_on_pooled_data(mode, problem_kind, parties):
    problem, blocks = federation(settings_for(mode, problem_kind), parties)
    before = [party_bambi.start(block) for block in blocks]
    after = train(problem, blocks)
    base, hypergradient = pooled(problem, blocks, before).zeroth_order(
        1, [torch.from_numpy(s.y) for s in before], mode.endswith("local")
    )
    assert relative_error([torch.from_numpy(s.y) for s in after], base) < 1e-9
    assert relative_error([b.x - a.x for b, a in zip(before, after, strict=True)], hypergradient) < 1e-6


@pytest.mark.parametrize("problem_kind", ["hyper_representation", "hyper_parameters"])
@pytest.mark.parametrize("preconditioner", [True, False])
def test_the_implicit_hypergradient_is_that_of_dense_implicit_differentiation(problem_kind, preconditioner):
    settings = settings_for("implicit", problem_kind, implicit={"preconditioner": preconditioner})
    problem, blocks = federation(settings, 3)
    before = [party_bambi.start(block) for block in blocks]
    after = train(problem, blocks)
    oracle = pooled(problem, blocks, before)
    solution = oracle.solve_lower(1, [torch.from_numpy(s.y) for s in before])
    assert relative_error([torch.from_numpy(s.y) for s in after], solution) < 1e-7
    exact = oracle.implicit(1, solution)
    assert relative_error([b.x - a.x for b, a in zip(before, after, strict=True)], exact) < 1e-6


@pytest.mark.parametrize("problem_kind", ["hyper_representation", "hyper_parameters"])
@pytest.mark.parametrize("scale", [1.0, 0.01])
def test_through_the_ring_of_the_default_settings_the_implicit_hypergradient_keeps_its_digits(problem_kind, scale):
    """Also where the upper gradient, and with it r·z of the adjoint system, is small."""
    problem, blocks = federation(settings_for("implicit", problem_kind), 3)
    if problem_kind == "hyper_parameters":
        problem.labels.array *= scale
    before = [party_bambi.start(block) for block in blocks]
    after = train(problem, blocks, sums=protected_sums(AggregationSpec(), 3))
    oracle = pooled(problem, blocks, before)
    exact = oracle.implicit(1, oracle.solve_lower(1, [torch.from_numpy(s.y) for s in before]))
    assert relative_error([b.x - a.x for b, a in zip(before, after, strict=True)], exact) < 1e-6


def test_implicit_after_gradient_steps_differentiates_at_the_last_batch():
    problem, blocks = federation(settings_for("implicit", lower={"solver": "sgd", "steps": 4, "batch": 20}), 3)
    before = [party_bambi.start(block) for block in blocks]
    after = train(problem, blocks)
    oracle = pooled(problem, blocks, before)
    y = oracle.descend(oracle.x, 1, oracle.y)
    assert relative_error([torch.from_numpy(s.y) for s in after], y) < 1e-9
    assert relative_error([b.x - a.x for b, a in zip(before, after, strict=True)], oracle.implicit(1, y, t=4)) < 1e-6


def test_the_paper_s_local_estimator_is_biased_where_features_are_correlated():
    """With Q = p orthogonal directions both estimators are free of noise: what is left is bias."""
    found = {}
    for mode in ("zeroth_order", "zeroth_order_local"):
        settings = settings_for(
            mode,
            "hyper_parameters",
            coefficients="feature",
            lower={"steps": 2000, "optimiser": {"step": 0.1}},
            zeroth_order={"directions": 9, "smoothing": 1e-6},
        )
        problem, blocks = federation(settings, 3, outputs=1)
        before = [party_bambi.start(block) for block in blocks]
        after = train(problem, blocks)
        exact = pooled(problem, blocks, before).implicit(1, [torch.from_numpy(s.y) for s in after])
        found[mode] = cosine([b.x - a.x for b, a in zip(before, after, strict=True)], exact)
    assert found["zeroth_order"] > 0.9999
    assert found["zeroth_order_local"] < 0.97


def test_a_badly_scaled_embedding_is_named_and_not_factored():
    problem, blocks = federation(settings_for("implicit", "hyper_parameters", regularisation=1e-12), 2)
    flat = replace(blocks[0], features=np.full_like(blocks[0].features, 1e8))
    with pytest.raises(IllConditioned, match="standardise"):
        train(problem, [flat, blocks[1]])
