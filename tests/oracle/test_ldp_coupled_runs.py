"""Two coupled runs of one agent, which differ in one unit of data, never lose more privacy than was accounted for.

For fixed observations the privacy loss of a run is at most Σ_t ‖state_t − state'_t‖₁/ν_t over its releases, where both
runs received the same messages. That sum is measured here and compared with the accountant's.
"""

import math
from dataclasses import replace

import numpy as np
import pytest

from parley.numerics.streams import batch, stream
from parley.party.ldp_dsbo.objectives import Bounds, admit
from parley.party.ldp_dsbo.steps import Agent, LdpDsbo, NoisedState, begin, privacy_plan, update
from parley.privacy.ldp_accounting import Decay, Oracle, Schedules, laplace_scales, losses
from parley.services.party.config import PreprocessConfig, TableConfig
from parley.services.party.preprocessing import table_of_run
from parley.services.party.tables import TableStore
from parley.spec.parsing import parse_spec
from parley.tables.preprocessing import PreprocessingInvalid

SIZE = 6
STEPS = 60
WEIGHTS = {1: 0.3, 2: 0.3}
SETTINGS = LdpDsbo(
    step_sizes=Schedules(Decay(0.5, 0.95), Decay(1.0, 0.87), Decay(0.3, 0.75)),
    noise_scales=laplace_scales(1.0, 0.81, 0.77, 0.61),
    bounds=Bounds(row_l1=1.0, row_max=0.5, x_low=-4.0, x_high=-1.0, y_max=3.0, z_max=3.0),
    batch_size=4,
)


def agent(seed, settings, changed=(), scale=1.0):
    """An agent whose records in `changed` are replaced by ones that pull the other way as hard as they can."""
    draw = stream(seed, "records")
    parts = []
    for _ in range(2):
        features = scale * draw.normal(size=(STEPS * settings.batch_size, SIZE))
        labels = np.sign(features[:, 0] + 0.3 * draw.normal(size=len(features)))
        for row in changed:
            features[row] = -100.0 * np.sign(features[row])
        parts.append(admit(features, labels, settings.bounds))
    return Agent(0, *parts)


def drawn(settings, t):
    """The rows of both kinds that agent 0 takes at step t."""
    total = STEPS * settings.batch_size
    return [
        int(row)
        for kind in ("lower", "upper")
        for row in batch(settings.seed, f"ldp.batch.{kind}.0", 0, t, total, settings.batch_size)
    ]


def measured(first, second, settings, seed, steps=STEPS):
    """Return ‖Δ_t‖₁/ν_t for t = 1 … steps and x, y, z, of two agents that hear the same messages."""
    states = [begin(SIZE), begin(SIZE)]
    listed = []
    for t in range(steps):
        draw = stream(seed, "messages", 0, t)
        received = {j: NoisedState(*(draw.laplace(size=(3, SIZE)) / (t + 1.0) ** 0.7), step=t) for j in WEIGHTS}
        states = [
            update(one, settings, WEIGHTS, state, received) for one, state in zip((first, second), states, strict=True)
        ]
        a, b = states
        distance = [np.abs(p - q).sum() for p, q in ((a.x, b.x), (a.y, b.y), (a.z, b.z))]
        listed.append(np.array(distance) / settings.noise_scales.at(t + 1))
    return np.stack(listed)


@pytest.mark.parametrize("oracle", list(Oracle), ids=lambda oracle: oracle.value)
@pytest.mark.parametrize("seed", range(8))
def test_one_changed_record_never_costs_more_than_was_accounted_for(oracle, seed):
    settings = replace(SETTINGS, oracle=oracle)
    accounted = losses(privacy_plan(settings, SIZE, -0.6), STEPS)
    row = 0 if oracle is Oracle.HISTORY else drawn(settings, 0)[0]
    loss = measured(agent(seed, settings), agent(seed, settings, changed=[row]), settings, seed)
    assert (loss <= accounted + 1e-12).all()
    assert loss.sum() > 0


@pytest.mark.parametrize("seed", range(8))
def test_a_whole_changed_step_never_costs_more_than_was_accounted_for(seed):
    accounted = losses(privacy_plan(SETTINGS, SIZE, -0.6, per_record=False), STEPS)
    changed = range(SETTINGS.batch_size)
    loss = measured(agent(seed, SETTINGS), agent(seed, SETTINGS, changed=changed), SETTINGS, seed)
    assert (loss <= accounted + 1e-12).all()


@pytest.mark.parametrize("seed", range(4))
def test_the_account_is_not_idle(seed):
    """The first release, where only the changed step's own update differs, comes close to its bound."""
    accounted = losses(privacy_plan(SETTINGS, SIZE, -0.6, per_record=False), 1)
    changed = range(SETTINGS.batch_size)
    loss = measured(agent(seed, SETTINGS), agent(seed, SETTINGS, changed=changed), SETTINGS, seed, steps=1)
    assert loss[0, 1] > 0.15 * accounted[0, 1]  # the slope is ½ at y = 0, and no record starts at its bound


def test_a_unit_that_stays_out_of_every_mini_batch_costs_nothing():
    settings = replace(SETTINGS, oracle=Oracle.MINIBATCH, batch_size=4)
    seen = {row for t in range(3) for row in drawn(settings, t)}
    absent = next(row for row in range(STEPS * settings.batch_size) if row not in seen)
    loss = measured(agent(0, settings), agent(0, settings, changed=[absent]), settings, 0, steps=3)
    assert loss.sum() == 0
    assert losses(privacy_plan(settings, SIZE, -0.6), 3, np.zeros(3, dtype=bool)).sum() == 0


def test_the_closed_form_of_theorem_4_5_is_exceeded_by_coupled_runs_with_the_papers_steps_and_noise():
    """Why the recursions are iterated: a sum over 50 records with features of standard deviation 10."""
    settings = LdpDsbo(
        step_sizes=Schedules(Decay(0.05, 0.95), Decay(0.05, 0.87), Decay(0.02, 0.75)),
        noise_scales=laplace_scales(1.0, 0.90, 0.86, 0.70),
        bounds=Bounds(loss_scale=50.0, x_low=-5.0, x_high=5.0, y_max=100.0, z_max=100.0),
        batch_size=50,
    )
    loss = measured(
        agent(0, settings, scale=10.0),
        agent(0, settings, changed=range(50), scale=10.0),
        settings,
        0,
    )
    assert loss.sum() > printed_epsilon(settings, STEPS)


def printed_epsilon(settings, steps, w=0.6):
    """The bound of Theorem 4.5 (i), as printed."""
    total = 0.0
    for v, scales in zip(settings.step_sizes.rates, (0, 1, 2), strict=True):
        base = 4 * (1 + v) / (math.e * math.log(4 / (2 - 2 * w)))
        constant = 4 / w * base ** (1 + v)
        total += sum(constant / (t + 1) ** (1 + v) / settings.noise_scales.at(t)[scales] for t in range(1, steps + 1))
    return total


def loss_of_the_first_release(tmp_path, table_options, changed):
    """‖Δ_1‖₁/ν_1 of two agents whose tables differ in one record, read from files as a party reads them."""
    draw, settings = stream(3, "records"), replace(SETTINGS, oracle=Oracle.HISTORY, batch_size=100)
    features = 0.01 * draw.normal(size=(100, SIZE))
    labels = np.sign(features[:, 0])
    agents = []
    for name, extreme in (("one", False), ("other", changed)):
        rows = features.copy()
        if extreme:
            rows[7] = 1e4
        header = ",".join(["id", *(f"c{column}" for column in range(SIZE))])
        lines = [",".join([f"{row:03}", *map(repr, map(float, values))]) for row, values in enumerate(rows)]
        (tmp_path / f"{name}.csv").write_text("\n".join([header, *lines]) + "\n")
        store = TableStore({"train": TableConfig(path=tmp_path / f"{name}.csv", **table_options)})
        table = table_of_run(store, parse_spec(LOCAL), 0, dense=True)
        records = admit(table.features, labels, settings.bounds)
        agents.append(Agent(0, records, records))
    claimed = losses(privacy_plan(settings, SIZE, -0.6), 1)[0]
    first, second = agents
    return measured(first, second, settings, 0, steps=1)[0], claimed


LOCAL = """
name: coupled
parties: [bank, shop, telco]
train:
  algorithm: ldp_dsbo
  network: {kind: ring}
  classes: ["0", "1"]
  epsilon: 5
  bounds: {row_l1: 1, row_max: 0.5, x_low: -4, x_high: -1, y_max: 3, z_max: 3}
"""


def test_a_table_that_is_scaled_by_public_figures_keeps_the_bound_of_one_record(tmp_path):
    public = PreprocessConfig.model_validate(
        {"figures": {f"c{column}": {"shift": 0.0, "scale": 0.01} for column in range(SIZE)}}
    )
    loss, claimed = loss_of_the_first_release(tmp_path, {"preprocess": public}, changed=True)
    assert (loss <= claimed + 1e-12).all()
    assert loss.sum() > 0


def test_a_table_that_is_standardised_by_its_own_rows_breaks_it_and_is_refused(tmp_path, monkeypatch):
    with pytest.raises(PreprocessingInvalid, match="ε would not cover the figures that `standardise` learns"):
        loss_of_the_first_release(tmp_path, {"standardise": True}, changed=True)
    monkeypatch.setattr("parley.services.party.preprocessing._refuse_learnt_figures", lambda *_: None)
    loss, claimed = loss_of_the_first_release(tmp_path, {"standardise": True}, changed=True)
    assert loss.sum() > 5 * claimed.sum()
