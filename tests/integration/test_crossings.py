"""What the page says of a run is what left: the fields of its sentences are those that real messages carried."""

import os

import pytest

from parley.dashboard.crossings import crossings
from parley.privacy.manifest import PUBLIC
from parley.protocols.manifest import whole_manifest
from parley.testing.federations import ForkedFederation
from tests.faults.cases import CASES, PARTIES, _asysqn, _bambi, labels_of, make_tables, spec_text, tables_of

DERIVED = {entry.field.removeprefix("parley.") for entry in whole_manifest() if entry.derived_from != PUBLIC}
MAYBE = {"party.v1.OpenSessionResponse.warnings"}
"""Leaves only if there is something to warn of."""
ELSEWHERE = {"coordinator.v1.SlopesQuestion.opened_theta", "asysqn.v1.Slopes.derivative"}
"""Crosses on a call of the coordinator's service, which the watched party does not serve."""


def one_release(algorithm, mechanism, **train):
    """A run that reads labels once, if at all."""
    return {
        "table": "cancer",
        "train": {"algorithm": algorithm, **train},
        "privacy": {"labels": {"mechanism": mechanism, "epsilon": 3}},
    }


RUNS = {
    name: CASES[name]
    for name in (
        "implicit, pairwise, once",
        "zeroth order, two trees, per step",
        "fedbio, pairwise",
        "asysqn, synchronous, pairwise, once",
        "asysqn, synchronous, two trees",
        "hgp",
        "ldp-dsbo",
    )
} | {
    "zeroth order at each party": _bambi("zeroth_order_local", "sgd", "pairwise", "once", 4),
    "asysqn, asynchronous, labels at the coordinator": _asysqn(
        "pairwise", {"mechanism": "once", "epsilon": 3}, steps=40, labels_at="coordinator"
    ),
    "asysqn, asynchronous, two trees": _asysqn("two_tree", None, steps=40),
    "glm, off": one_release("glm", "off", family="linear"),
    "glm, ridge, once": one_release("glm", "once", penalty={"strength": 0.1}),
    "glm, elastic net": one_release("glm", "off", penalty={"strength": 0.1, "l1_ratio": 0.5}),
    "explore": one_release("explore", "off"),
    "explore, against the label, once": one_release("explore", "once", against_label=True),
}


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """A federation whose parties note the fields that they see."""
    folder = tmp_path_factory.mktemp("crossings")
    make_tables(folder / "data")
    os.environ["FIELDS"] = str(folder / "fields")
    local = ForkedFederation(
        folder / "federation",
        {name: tables_of(folder / "data", name) for name in PARTIES},
        labels_of(folder / "data"),
        policy={
            "algorithms": ["bambi", "fedbio", "asysqn", "hgp", "ldp_dsbo", "glm", "explore"],
            "epsilon_budget": 1e6,
        },
        modules=dict.fromkeys(PARTIES, "tests.integration.field_recording_party"),
        ready_seconds=240,
    )
    with local, local.connect() as client:
        yield folder, client
    del os.environ["FIELDS"]


def forget(folder):
    """Parties begin a new list with each run that they open."""
    for path in folder.glob("fields.*"):
        path.unlink()


def noted(folder):
    names = {line for path in folder.glob("fields.*") for line in path.read_text().split()}
    return {name.removeprefix("parley.") for name in names} & DERIVED


@pytest.mark.parametrize("case", RUNS)
def test_a_run_sends_what_its_sentences_say_and_nothing_else(watched, case):
    folder, client = watched
    text = spec_text(RUNS[case])
    forget(folder)
    client.start(text).result()
    left = {name for name in noted(folder) if not name.startswith("tensor.")}
    told = {f.field for statement in crossings(text) if statement.moment == "training" for f in statement.fields}
    assert left - told == set(), "it left, and nobody said so"
    assert told - left <= MAYBE | ELSEWHERE, "it was said to leave, and did not"


def test_a_prediction_sends_what_its_sentence_adds(watched):
    folder, client = watched
    text = spec_text(RUNS["implicit, pairwise, once"])
    run = client.start(text)
    run.result()
    told = {f.field for statement in crossings(text) for f in statement.fields}
    forget(folder)
    every = run.predict().ids
    left = {name for name in noted(folder) if not name.startswith("tensor.")}
    assert left <= told
    assert "party.v1.OpenSessionResponse.ids" not in left, "a party tells no ids"
    forget(folder)
    run.predict(ids=every[:2])
    left = {name for name in noted(folder) if not name.startswith("tensor.")}
    assert left <= told
    assert "party.v1.OpenSessionRequest.ids" in left
