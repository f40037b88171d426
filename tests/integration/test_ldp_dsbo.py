"""LDP-DSBO over real processes: three agents, noise on everything that they send, a ledger for each."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import yaml
from safetensors.numpy import load
from scipy.stats import kstest

from parley.client import RequestRefused
from parley.experiments import ldp_dsbo_agents
from parley.numerics.networks import gossip_weights, links
from parley.party.ldp_dsbo import meta_learning as ldp_meta
from parley.party.ldp_dsbo.objectives import admit
from parley.party.ldp_dsbo.role import settings_of
from parley.party.ldp_dsbo.steps import Agent, first_state
from parley.privacy.ledger import open_ledger
from parley.privacy.noise import KeyedNoise
from parley.protocols.decentralised.messages import plan_of
from parley.protocols.ldp_dsbo.settings import LdpDsboSpec
from parley.spec.parsing import parse_spec
from parley.testing.federations import ForkedFederation
from parley.testing.remains import start
from tests.faults.harness import DisturbableFederation, wait_for_step

PARTIES = ("north", "east", "south")
SIZE, STEPS, BATCH = 8, 24, 20
ROWS = STEPS * BATCH
META = {"kind": "meta_learning", "tasks": 3, "embedding": 2, "bounds": {"z_max": 0.5}}
META_STEPS = {
    "x": {"initial": 0.1, "rate": 0.95},
    "y": {"initial": 1.0, "rate": 0.87},
    "z": {"initial": 0.1, "rate": 0.75},
}


def records(member):
    draw = np.random.default_rng(member)
    rule = np.random.default_rng(99).standard_normal(SIZE)
    features = draw.standard_normal((2 * ROWS, SIZE)) * 0.1
    return features, (features @ rule > 0).astype(int)


def tasks_of(member):
    return np.random.default_rng(50 + member).integers(0, META["tasks"], size=2 * ROWS)


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    directory, tables = tmp_path_factory.mktemp("ldp"), {}
    for member, party in enumerate(PARTIES):
        features, labels = records(member)
        path = directory / f"{party}.npz"
        ids = np.array([f"{row:05d}" for row in range(2 * ROWS)])
        columns = np.array([f"c{column}" for column in range(SIZE)])
        np.savez(path, x=features, label=labels, ids=ids, columns=columns)
        tables[party] = {"rows": {"path": str(path), "label": "label", "label_path": str(path)}}
        tables[party]["standardised"] = tables[party]["rows"] | {"standardise": True}
        tables[party]["centred"] = tables[party]["rows"] | {"preprocess": {"scale": "standard"}}
        tables[party]["filled"] = tables[party]["rows"] | {"preprocess": {"missing": "median"}}
        meta = directory / f"{party}-tasks.npz"
        rows = np.column_stack([features, tasks_of(member)])
        np.savez(meta, x=rows, label=labels, ids=ids, columns=np.append(columns, "task"))
        tables[party]["tasks"] = {"path": str(meta), "label": "label", "label_path": str(meta)}
    return tables


@pytest.fixture(scope="module")
def federation(tables, tmp_path_factory):
    modules = dict.fromkeys(PARTIES, "tests.integration.recording_neighbour")
    recording = tmp_path_factory.mktemp("recording")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RECORDING", str(recording))
        local = ForkedFederation(
            tmp_path_factory.mktemp("ldp-federation"), tables, {}, modules=modules, policy={"epsilon_budget": 90.0}
        )
        with local:
            yield local, recording


@pytest.fixture
def client(federation):
    with federation[0].connect() as connected:
        yield connected


def spec(table="rows", **train):
    content = {
        "name": "ldp",
        "seed": 6,
        "dtype": "float64",
        "table": table,
        "parties": list(PARTIES),
        "split": {"lower": f"0:{ROWS}", "upper": f"{ROWS}:{2 * ROWS}", "test": 0},
        "train": {
            "algorithm": "ldp_dsbo",
            "classes": ["0", "1"],
            "epsilon": 30,
            "iterations": STEPS,
            "batch": BATCH,
            "weight": 0.3,
            "noise": {"sigma": 1.0},
            "stretch": 10,
            **train,
        },
        "checkpoint_every": 12,
        "wait_seconds": 240,
    }
    return yaml.safe_dump(content)


def simulated(text, keys, run_id):
    """The agents' states at the start of every step and at the end, with the parties' own keys."""
    run = parse_spec(text)
    train = run.settings(LdpDsboSpec)
    settings = settings_of(train, run.seed)
    agents = []
    for member in range(len(PARTIES)):
        features, labels = records(member)
        signs = np.where(labels == 1, 1.0, -1.0)
        parts = (slice(0, ROWS), slice(ROWS, 2 * ROWS))
        agents.append(Agent(member, *(admit(features[part], signs[part], settings.bounds) for part in parts)))
    weights = gossip_weights(links(plan_of(train.network, PARTIES, run.seed), 0), train.weight)
    seen = [[first_state(settings, SIZE)] * len(agents)]
    federation = ldp_dsbo_agents.Federation(agents, [settings] * len(agents), keys, weights, SIZE)
    ldp_dsbo_agents.train(federation, STEPS, run=run_id, watch=lambda _, states: seen.append(states))
    return seen, settings.noise_scales


def test_a_run_has_the_bits_of_one_process_and_laplace_noise_of_the_declared_scale_on_the_wire(client, federation):
    local, recording = federation
    text = spec()
    run = client.start(text)
    run.result()
    state = local.directory / "state"
    keys = [KeyedNoise((state / party / "ldp-noise.key").read_bytes()) for party in PARTIES]
    states, scales = simulated(text, keys, run.run_id)
    for party, agent in zip(PARTIES, states[-1], strict=True):
        model = load((state / party / "runs" / run.run_id / "model.safetensors").read_bytes())
        for name in "xyz":  # the own update uses the clear state: noise in it would change every bit
            np.testing.assert_array_equal(model[name], getattr(agent, name))
        assert "ε" in json.loads((state / party / "runs" / run.run_id / "agent.json").read_text())["privacy"]

    noise = []
    for sender in range(len(PARTIES)):
        for t in range(STEPS):
            copies = [
                np.load(recording / f"{run.run_id}-{party}-{sender}-{t:06d}.npy").reshape(3, SIZE)
                for receiver, party in enumerate(PARTIES)
                if receiver != sender
            ]
            np.testing.assert_array_equal(copies[0], copies[1])  # the same to all neighbours
            clear = np.stack([getattr(states[t][sender], name) for name in "xyz"])
            noise.append((copies[0] - clear) / scales.at(t)[:, None])
    assert kstest(np.concatenate(noise).ravel(), "laplace").pvalue > 1e-3  # false alarm: once in a thousand keys


def test_a_meta_learning_run_has_the_bits_of_one_process(client, federation):
    local, _ = federation
    text = spec(table="tasks", task=META, step_sizes=META_STEPS)
    run = client.start(text)
    run.result()
    state, parsed = local.directory / "state", parse_spec(text)
    train = parsed.settings(LdpDsboSpec)
    settings = settings_of(train, parsed.seed, [*(f"c{column}" for column in range(SIZE)), "task"])
    agents = []
    for member in range(len(PARTIES)):
        features, labels = records(member)
        signs, tasks = np.where(labels == 1, 1.0, -1.0), tasks_of(member)
        parts = (slice(0, ROWS), slice(ROWS, 2 * ROWS))
        agents.append(Agent(member, *(ldp_meta.admit(features[p], tasks[p], signs[p], settings.bounds) for p in parts)))
    keys = [KeyedNoise((state / party / "ldp-noise.key").read_bytes()) for party in PARTIES]
    weights = gossip_weights(links(plan_of(train.network, PARTIES, parsed.seed), 0), train.weight)
    known = ldp_dsbo_agents.Federation(agents, [settings] * len(agents), keys, weights, SIZE)
    for party, agent in zip(PARTIES, ldp_dsbo_agents.train(known, STEPS, run=run.run_id), strict=True):
        model = load((state / party / "runs" / run.run_id / "model.safetensors").read_bytes())
        for name, size in (("x", 2 * SIZE), ("y", 6), ("z", 6)):
            assert model[name].shape == (size,)
            np.testing.assert_array_equal(model[name], getattr(agent, name))


def test_meta_learning_without_its_column_is_refused(client):
    with pytest.raises(RequestRefused, match=r"column 'task', which the table does not have.*DATA_INVALID"):
        client.start(spec(task=META, step_sizes=META_STEPS))


def test_every_step_is_in_the_agents_own_ledger(client, federation):
    local, _ = federation
    run = client.start(spec())
    run.result()
    for party in PARTIES:
        ledger = open_ledger(f"sqlite:///{local.directory / 'state' / party / 'party.db'}")
        entries = ledger.entries(run.run_id)
        assert [entry.first_release for entry in entries] == list(range(STEPS))
        assert entries[0].epsilon == 0  # the first state depends on no data
        assert 0 < entries[-1].epsilon <= 30
        assert set(json.loads(entries[-1].recipients)) == set(PARTIES) - {party}
        ledger.verify(run.run_id)
        ledger.close()


def left_behind(local, run):
    """Every party's model, and its own ledger without times and what follows from them."""
    models, ledgers = [], []
    for party in PARTIES:
        state = local.directory / "state" / party
        models.append((state / "runs" / run.run_id / "model.safetensors").read_bytes())
        ledger = open_ledger(f"sqlite:///{state / 'party.db'}")
        ledger.verify(run.run_id)
        ledgers.append([replace(e, time="", previous_hash="", hash="") for e in ledger.entries(run.run_id)])
        ledger.close()
    return models, ledgers


def test_a_killed_agent_comes_back_and_models_and_ledgers_are_those_of_the_undisturbed_run(
    client, federation, tables, tmp_path
):
    """The noise follows from an agent's key and the run's id: the same of both, the same run."""
    text, request = spec(stretch=4), "killed-and-resumed"
    undisturbed = client.start(text, request)
    undisturbed.result()
    disturbed = DisturbableFederation(tmp_path, tables, {}, policy={"epsilon_budget": 90.0}, ready_seconds=300.0)
    for party in PARTIES:
        key = federation[0].directory / "state" / party / "ldp-noise.key"
        (tmp_path / "state" / party).mkdir(parents=True)
        shutil.copy(key, tmp_path / "state" / party / "ldp-noise.key")
    with disturbed, disturbed.connect() as other:
        for proxy in disturbed.proxies.values():
            proxy.weather.delay_seconds = 0.03  # long enough to be killed in the middle of
        run = start(other, text, request)
        assert run.run_id == undisturbed.run_id
        assert wait_for_step(other, run.run_id, 12).state == "RUNNING"
        disturbed.kill("east")
        disturbed.restart("east")
        run.result()
        assert run.refresh().message.attempt >= 2
        assert left_behind(disturbed, run) == left_behind(federation[0], undisturbed)


def test_a_run_over_its_own_epsilon_is_refused_before_it_starts(client):
    with pytest.raises(RequestRefused, match=r"would spend epsilon.*past the limit of 0\.5.*BUDGET_EXHAUSTED"):
        client.start(spec(epsilon=0.5))


def test_a_run_over_the_partys_budget_is_refused_before_it_starts(client):
    with pytest.raises(RequestRefused, match=r"past the limit of 90.*BUDGET_EXHAUSTED"):
        client.start(spec(epsilon=100, noise={"sigma": 0.14}))


def test_states_in_the_clear_are_refused_unless_the_policy_allows_them(client):
    with pytest.raises(RequestRefused, match=r"would spend epsilon inf.*BUDGET_EXHAUSTED"):
        client.start(spec(noise=None))


@pytest.mark.parametrize("table", ["standardised", "centred", "filled"])
def test_figures_that_are_learnt_from_rows_are_refused_since_one_record_would_move_them_all(client, federation, table):
    before = sorted(federation[1].iterdir())
    with pytest.raises(RequestRefused, match=r"the party's table cannot be used.*DATA_INVALID"):
        client.start(spec(table=table))
    assert any(
        "Take public ones: `preprocess: {figures:" in (federation[0].directory / f"{name}.log").read_text()
        for name in PARTIES
    )
    assert sorted(federation[1].iterdir()) == before, "nothing has crossed"


def test_noise_that_decays_faster_than_the_steps_is_refused(client):
    with pytest.raises(RequestRefused, match=r"must be smaller than v.*SPEC_INVALID"):
        client.start(spec(noise={"sigma": 1.0, "x_rate": 1.5}))
