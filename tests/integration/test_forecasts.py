"""What a run will send is told before it starts, and a real run then counts about that."""

import json

import pytest
from typer.testing import CliRunner

from parley.cli import app
from parley.client import RequestRefused
from tests.integration.conftest import spec

LOCAL = {
    "split": {"lower": 0.8, "upper": "lower", "test": 0.2},
    "train__hypergradient": "local",
    "train__local": {"exchanges": 6, "total_epochs": 1000},
}
ENVELOPE = {
    "split": {"lower": 0.8, "upper": "lower", "test": 0.2},
    "train__implicit": {"newton_rounds": 2, "tolerance": 0, "envelope": True},
}
ZEROTH = {
    "train__hypergradient": "zeroth_order",
    "train__lower": {"solver": "sgd", "steps": 3, "batch": 200, "warmup_steps": 2, "final_steps": 4},
    "train__zeroth_order": {"directions": 3},
}
SYNCHRONOUS = {
    "table": "cancer",
    "train": {
        "algorithm": "asysqn",
        "schedule": "synchronous",
        "labels_at": "coordinator",
        "steps": 20,
        "batch": 64,
        "snapshot_every": 4,
    },
}


@pytest.mark.parametrize(
    "changes",
    [
        {"train__implicit": {"rounds": 3, "newton_rounds": 3, "tolerance": 0}},
        ENVELOPE,
        {"privacy__aggregation__kind": "two_tree"},
        {"privacy__aggregation__ring_bits": 32, "split": {"lower": 0.5, "upper": 0.2, "validation": 0.1, "test": 0.2}},
        ZEROTH,
        LOCAL,
        SYNCHRONOUS,
    ],
    ids=["implicit", "envelope", "two-tree", "narrow", "zeroth-order", "local", "synchronous"],
)
def test_a_run_counts_what_was_foretold(client, changes):
    text = spec(**changes)
    foretold = client.foretell(text)
    counted = client.start(text).result()
    assert counted["rounds"] == foretold.rounds
    assert counted["bytes"] == pytest.approx(foretold.bytes, rel=0.05)


def test_what_nobody_can_tell_is_said(client):
    asynchronous = spec(table="cancer", train={"algorithm": "asysqn", "labels_at": "coordinator", "steps": 20})
    with pytest.raises(RequestRefused, match="UNFORETOLD"):
        client.foretell(asynchronous)
    with pytest.raises(RequestRefused, match=r"UNFORETOLD|labels"):
        client.foretell(spec(labels="nowhere"))


def test_the_command_foretells_the_time_at_a_link(federation, tmp_path, client):
    path = tmp_path / "spec.yaml"
    path.write_text(spec())
    options = ["--address", federation.addresses["coordinator"], "--identity", str(federation.identity("client"))]
    result = CliRunner().invoke(app, ["run", "check", str(path), *options, "--link", "100mbit,20ms", "--json"])
    assert result.exit_code == 0, result.output
    found, same = json.loads(result.stdout)["forecast"], client.foretell(spec())
    assert found["seconds"] == pytest.approx(8 * same.bytes / 1e8 + 0.02 * same.rounds)
    started = CliRunner().invoke(app, ["run", "start", str(path), *options])
    assert f"at most {same.rounds} round trips" in started.stderr
    client.run(started.stdout.strip()).result()
