"""Metrics leave to clients that may see them, over enough rows, and are counted across runs. Real processes."""

import stat

import pytest

from parley.client import RequestRefused, connect
from parley.services.wire.certificates import issue
from tests.integration.conftest import spec

ONE = {"lower": "400:900", "upper": "900:1000", "test": "7:8"}


@pytest.fixture(scope="module")
def newcomer(federation, tmp_path_factory):
    """A certificate of the federation's own authority that no configuration names."""
    folder = tmp_path_factory.mktemp("newcomer") / "newcomer"
    issue(federation.directory / "certificates" / "authority", "newcomer", "client", ["localhost"], out=folder)
    with connect(federation.addresses["coordinator"], folder) as connected:
        yield connected


def test_a_certificate_alone_starts_nothing_and_is_told_the_line_that_is_missing(newcomer):
    with pytest.raises(RequestRefused) as refusal:
        newcomer.start(spec(name="unpermitted", split=ONE))
    assert refusal.value.reason == "NOT_PERMITTED"
    assert "`newcomer: [start]` under `clients`" in str(refusal.value)


def test_the_accuracy_of_one_row_is_not_measured(client):
    with pytest.raises(RequestRefused) as refusal:
        client.start(spec(name="single", split=ONE))
    # the parties have a floor of their own, and are asked first; the coordinator's holds where theirs is lower
    assert refusal.value.reason in ("POLICY_REFUSED", "EVALUATION_REFUSED")
    assert "minimum_evaluation" in str(refusal.value)


def test_two_runs_whose_test_rows_differ_by_one_are_not_both_measured(client):
    training = {"lower": "400:900", "upper": "900:1000"}
    run = client.start(spec(name="wide", split={**training, "test": "0:40"}, train__upper__steps=2))
    run.result()
    with pytest.raises(RequestRefused) as refusal:
        client.start(spec(name="narrow", split={**training, "test": "0:41"}, train__upper__steps=2))
    assert refusal.value.reason == "EVALUATION_REFUSED"
    [counted] = run.ledger().evaluations
    assert (counted.name, counted.rows, counted.evaluations, counted.HasField("epsilon")) == ("test", 40, 1, False)


def test_three_runs_whose_test_rows_add_up_to_one_row_are_not_all_measured(client):
    """Accuracies over A ∪ {x}, over B and over A ∪ B; the splits are ranges, so B lies beside x."""
    training = {"lower": "400:900", "upper": "900:1000"}
    for name, rows in {"before": "200:241", "behind": "241:281"}.items():
        client.start(spec(name=name, split={**training, "test": rows}, train__upper__steps=2)).result()
    with pytest.raises(RequestRefused, match="added to and subtracted from") as refusal:
        client.start(spec(name="all", split={**training, "test": "201:281"}, train__upper__steps=2))
    assert refusal.value.reason == "EVALUATION_REFUSED"


def test_another_name_for_the_same_table_does_not_help(client):
    training = {"lower": "400:900", "upper": "900:1000"}
    client.start(spec(name="named", split={**training, "test": "100:160"}, train__upper__steps=2)).result()
    with pytest.raises(RequestRefused) as refusal:
        client.start(
            spec(name="renamed", labels="uneven", split={**training, "test": "100:161"}, train__upper__steps=2)
        )
    assert refusal.value.reason == "EVALUATION_REFUSED"


def test_what_services_keep_is_for_their_own_user_alone(federation, client):
    client.start(spec(name="kept", train__upper__steps=2, checkpoint_every=1)).result()
    kept = [federation.directory / "state", *(federation.directory / "state").rglob("*")][1:]
    assert {path.suffix for path in kept} >= {".db", ".key", ".safetensors"}
    for path in kept:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode & 0o077 == 0, f"{path} has mode {mode:o}"
