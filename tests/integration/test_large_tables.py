"""A table that takes longer to read than a call may last is being loaded; its party is not unreachable."""

import json
import time

import numpy as np
import pytest
from typer.testing import CliRunner

from parley.cli import app
from parley.testing.federations import ForkedFederation


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    folder = tmp_path_factory.mktemp("slow")
    rows = "\n".join(f"{row},{value:.6f}" for row, value in enumerate(np.random.default_rng(1).normal(size=20_000)))
    (folder / "bank.csv").write_text(f"id,a\n{rows}\n")
    (folder / "shop.csv").write_text("id,b\n1,2\n2,3\n")
    (folder / "labels.csv").write_text("id,label\n1,0\n2,1\n")
    tables = {name: {"train": {"path": folder / f"{name}.csv"}} for name in ("bank", "shop")}
    modules = {"bank": "tests.integration.slow_table_party"}
    labels = {"train": {"path": folder / "labels.csv"}}
    with ForkedFederation(folder, tables, labels, modules=modules) as local:
        yield local


def test_a_party_with_a_large_table_answers_at_once_and_says_how_far_it_has_read(slow):
    with slow.connect() as client:
        client.parties()
        time.sleep(5)
        bank, shop = client.parties()  # within the deadline of a call, or it would not be reachable
    assert bank.reachable, bank.problem
    (table,) = bank.offers
    assert 0 < table.loaded_percent < 100
    assert (table.rows, table.problem) == (0, "")
    (small,) = shop.offers
    assert (small.loaded_percent, small.rows) == (100, 2)


def test_the_doctor_says_that_the_table_is_being_loaded(slow):
    options = ["--address", slow.addresses["coordinator"], "--identity", str(slow.identity("client")), "--json"]
    result = CliRunner().invoke(app, ["doctor", *options])
    found = {check["subject"]: check for check in json.loads(result.stdout)}["party bank table train"]
    assert found["state"] == "ok"
    assert found["finding"].startswith("loading, ")


def test_a_party_is_asked_to_stop_while_it_reads_and_stops_at_once(slow):
    process = slow.processes["bank"]
    process.terminate()
    assert process.wait(timeout=60) == 0, "it was not killed, and reading on would take minutes"
