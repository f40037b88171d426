"""A coordinator whose PostgreSQL is restarted, taken away or frozen while runs go on."""

import contextlib
import hashlib
import threading
import time

import pytest

from parley.client import RequestRefused
from parley.testing.federations import ForkedFederation
from tests.integration.conftest import spec

PARTIES = ("bank", "shop", "telco")


@pytest.fixture(scope="module")
def local(postgres_server, data, tmp_path_factory):
    tables = {name: {"digits": {"path": data / "digits" / f"{name}.parquet"}} for name in PARTIES}
    labels = {"digits": {"path": data / "digits" / "labels.parquet", "budget": {"epsilon": 1e5}}}
    options = {"database": postgres_server.url}
    with ForkedFederation(
        tmp_path_factory.mktemp("outages"), tables, labels, coordinator_options=options
    ) as federation:
        yield federation


@pytest.fixture
def client(local):
    with local.connect() as connected:
        yield connected


def long_run(client, **changes):
    """A run that goes on for some seconds, and pays for labels all the time."""
    steps = {"train__upper__steps": 60, "checkpoint_every": 10, "evaluate_every": 10, "wait_seconds": 90}
    run = client.start(spec(**steps | {"privacy__labels": {"mechanism": "per_step", "epsilon": 5}} | changes))
    for event in run.watch():
        if event.step >= 10:
            return run
    raise AssertionError(run.reason)


def digests(local, run):
    paths = [local.directory / "state" / name / "runs" / run.run_id / "model.safetensors" for name in PARTIES]
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths]


@contextlib.contextmanager
def away(server, seconds):
    """The server is stopped meanwhile, and comes back."""
    server.stop()

    def come_back():
        time.sleep(seconds)
        server.start()

    returning = threading.Thread(target=come_back)
    returning.start()
    try:
        yield
    finally:
        returning.join()


@pytest.mark.parametrize("seconds", [4, pytest.param(60, marks=pytest.mark.slow)])
def test_a_run_outlives_a_server_that_is_away_for_seconds(client, local, postgres_server, seconds):
    off = {"privacy__labels": {"mechanism": "off"}}
    undisturbed = client.start(spec(train__upper__steps=60, checkpoint_every=10, evaluate_every=10, **off))
    undisturbed.result()
    run = long_run(client, **off)
    with away(postgres_server, seconds):
        pass
    run.result()
    assert run.message.attempt == 1, "nobody had to begin anew"
    events = list(run.watch())
    assert [event.sequence for event in events] == list(range(1, len(events) + 1))
    assert len({event.SerializeToString() for event in events}) == len(events)
    assert digests(local, run) == digests(local, undisturbed)
    assert run.ledger().broken == ""


def test_who_watches_a_run_outlives_the_outage_too(client, postgres_server):
    run = long_run(client)
    with away(postgres_server, 4):
        events = list(run.watch())
    assert run.state == "COMPLETED"
    assert events[-1].state_change.totals.rounds > 0


def test_a_server_that_restarts_between_two_runs_is_not_noticed(client, postgres_server):
    client.start(spec()).result()
    postgres_server.stop()
    postgres_server.start()
    assert client.start(spec()).result()["rounds"] > 0


@pytest.mark.parametrize("seconds", [2, pytest.param(60, marks=pytest.mark.slow)])
def test_a_frozen_server_makes_the_coordinator_deaf_to_nobody(client, local, postgres_server, seconds):
    run = long_run(client)
    postgres_server.freeze()
    try:
        time.sleep(1.0)
        for _ in range(3):  # what needs no database is answered as ever
            assert [party.reachable for party in client.parties()] == [True, True, True]
            assert client.check(spec()) == []
        with pytest.raises(RequestRefused, match="STORAGE_AWAY"):
            client.run(run.run_id)
        for _ in range(30):  # many who ask in vain take nothing from the others
            threading.Thread(target=_ask_in_vain, args=(client, run.run_id)).start()
        time.sleep(seconds)
        assert client.check(spec()) == []
    finally:
        postgres_server.thaw()
    run.result()
    assert run.message.attempt == 1


def _ask_in_vain(client, run_id):
    with contextlib.suppress(RequestRefused):
        client.run(run_id)


def test_a_run_that_waited_for_its_database_in_vain_fails_by_name_and_is_resumed(client, postgres_server):
    run = long_run(client, wait_seconds=3)
    with away(postgres_server, 10):
        pass
    deadline = time.monotonic() + 60
    while run.refresh().state != "FAILED":
        assert time.monotonic() < deadline, run
        time.sleep(0.2)
    assert run.reason.startswith("STORAGE_FAILED")
    assert "does not answer" in run.reason
    run.resume().result()
    assert run.message.attempt == 2
