"""Runs with dropout recovery over real processes: five hospitals, one of which is killed in the middle."""

import signal
import time

import numpy as np
import pytest

from parley.contracts.run.v1 import run_pb2
from parley.model_card import model_card
from parley.testing.federations import ForkedFederation
from tests.integration.test_fedbio import file_of, hospital_rows, model_of, spec, write

HOSPITALS = ("north", "south", "east", "west", "centre")
RECOVERY = {"kind": "pairwise", "recovery": True}


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    directory = tmp_path_factory.mktemp("hospitals")
    columns = [f"p{i}" for i in range(64)]
    tables = {
        name: {
            table: write(directory / f"{name}-{table}.parquet", *content, columns)
            for table, content in hospital_rows(m).items()
        }
        for m, name in enumerate(HOSPITALS)
    }
    with ForkedFederation(tmp_path_factory.mktemp("federation"), tables, {}) as local:
        yield local


@pytest.fixture
def client(federation):
    with federation.connect() as connected:
        yield connected


def models(federation, run, parties=HOSPITALS):
    return [model_of(federation, run, party) for party in parties]


def weights(model):
    return np.concatenate([model["layers.0.weight"].numpy().ravel(), model["layers.0.bias"].numpy()])


def reach(run, step):
    for event in run.watch():
        if event.step >= step:
            return


def kill_at(federation, run, victim, step):
    reach(run, step)
    federation.kill(victim)


def wait_for(run, state, seconds=60):
    deadline = time.monotonic() + seconds
    while run.refresh().state != state and time.monotonic() < deadline:
        time.sleep(0.1)
    assert run.state == state, (run.state, run.reason)


@pytest.mark.parametrize("sampled", [None, 4])
def test_with_recovery_and_nobody_lost_the_model_is_the_same(client, federation, sampled):
    changes = {"rounds": 3, "parties": HOSPITALS} | ({} if sampled is None else {"parties_per_round": sampled})
    runs = [client.start(spec(privacy=privacy, **changes)) for privacy in (None, RECOVERY)]
    for run in runs:
        run.result()
    without, with_recovery = (weights(models(federation, run)[0]) for run in runs)
    np.testing.assert_allclose(with_recovery, without, rtol=0, atol=1e-6)


def test_a_run_goes_on_without_a_party_that_was_killed(client, federation):
    run = client.start(spec(rounds=60, privacy=RECOVERY, parties=HOSPITALS, evaluate_every=20, checkpoint_every=10))
    kill_at(federation, run, "west", 12)
    try:
        metrics = run.result()
        assert run.message.attempt == 1
        assert metrics["parties left out"] == 1
        assert metrics["test error"] < 0.25
        assert metrics["detection AUC"] > 0.85
        events = list(run.watch())
        (left,) = [event.party for event in events if event.party.change == run_pb2.RUN_PARTY_CHANGE_LEFT]
        assert (left.party, left.remaining, left.round >= 12) == ("west", 4, True)
        assert list(events[-1].state_change.left_out) == ["west"]
        survivors = [party for party in HOSPITALS if party != "west"]
        kept = [weights(model) for model in models(federation, run, survivors)]
        assert all(np.array_equal(kept[0], other) for other in kept)
        assert not file_of(federation, run, "model.safetensors", "west").exists()
        assert "west" in str(model_card(client, run)["left_out"])
    finally:
        federation.restart("west")


@pytest.mark.slow
def test_a_party_that_hangs_is_left_behind_at_the_deadline(client, federation):
    text = spec(rounds=40, privacy=RECOVERY, parties=HOSPITALS, checkpoint_every=0) + "round_seconds: 10\n"
    run = client.start(text)
    reach(run, 8)
    federation.processes["east"].send_signal(signal.SIGSTOP)
    try:
        run.result()
    finally:
        federation.processes["east"].send_signal(signal.SIGCONT)
    (left,) = [event.party for event in run.watch() if event.party.change == run_pb2.RUN_PARTY_CHANGE_LEFT]
    assert left.party == "east"
    assert run.message.attempt == 1


def test_below_the_threshold_the_run_goes_back_to_its_checkpoint_and_takes_everyone_in_again(client, federation):
    text = spec(rounds=80, privacy=RECOVERY, parties=HOSPITALS, checkpoint_every=4)
    run = client.start(text)
    kill_at(federation, run, "west", 8)
    try:
        kill_at(federation, run, "east", run.refresh().step + 24)
        wait_for(run, "PAUSED")
    finally:
        federation.restart("west")
        federation.restart("east")
    wait_for(run, "COMPLETED", 90)
    assert run.message.attempt == 2
    resumed = next(event.state_change for event in run.watch() if event.state_change.attempt == 2)
    assert resumed.from_step >= 8
    final = [weights(model) for model in models(federation, run)]
    assert all(np.array_equal(final[0], other) for other in final)


def test_without_recovery_a_killed_party_pauses_the_run(client, federation):
    run = client.start(spec(rounds=60, parties=HOSPITALS))
    kill_at(federation, run, "south", 12)
    try:
        wait_for(run, "PAUSED")
        assert "south" in run.reason
    finally:
        federation.restart("south")
    wait_for(run, "COMPLETED", 90)
    assert run.message.attempt == 2
