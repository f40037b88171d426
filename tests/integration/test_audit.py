"""What is done at a coordinator and at a party is in the audit trail of each, with who, when and from where."""

import httpx
import pytest

from parley.client import RequestRefused, connect
from parley.services.wire.audit import read_trail
from parley.services.wire.certificates import issue
from parley.testing.federations import ForkedFederation
from tests.integration.conftest import PARTIES, spec, tables_of


@pytest.fixture(scope="module")
def audited(data, tmp_path_factory):
    """Two parties, one of which only dials out, and a page."""
    parties = PARTIES[:3]
    local = ForkedFederation(
        tmp_path_factory.mktemp("audited"),
        {party: {"digits": tables_of(data, party)["digits"]} for party in parties},
        {"digits": {"path": str(data / "digits" / "labels.parquet"), "budget": {"epsilon": 1e5}}},
        coordinator_options={"web": {"listen": "127.0.0.1:0"}},
        outbound=("shop",),
    )
    with local:
        yield local


def trail(local: ForkedFederation, name: str):
    return list(read_trail(local.directory / "state" / name))


def named(entries, action):
    return [entry for entry in entries if entry.action.endswith(action)]


def test_a_run_is_in_the_trails_of_both_sides(audited):
    with audited.connect() as client:
        run = client.start(spec(train__upper__steps=1))
        run.result()
    started = named(trail(audited, "coordinator"), "/StartRun")[-1]
    assert (started.role, started.name, started.outcome) == ("client", "client", "admitted")
    assert started.address.startswith("127.0.0.1:")
    assert "spec sha256" in started.subject
    for party in ("bank", "shop"):
        opened = named(trail(audited, party), "/OpenSession")[-1]
        assert (opened.role, opened.name) == ("coordinator", "coordinator")
        assert f"run_id {run.run_id}" in opened.subject
        assert (opened.address == "relay") == (party == "shop")


def test_refusals_are_in_the_trail_with_their_reason(audited, tmp_path):
    ours = audited.directory / "certificates" / "authority"
    newcomer = issue(ours, "newcomer", "client", ["localhost"], out=tmp_path / "newcomer")
    with connect(audited.addresses["coordinator"], newcomer) as client, pytest.raises(RequestRefused):
        client.runs()
    entry = trail(audited, "coordinator")[-1]
    assert (entry.name, entry.outcome) == ("newcomer", "NOT_PERMITTED")
    with audited.connect() as client, pytest.raises(RequestRefused):
        client.run("run-of-nobody").cancel()
    assert trail(audited, "coordinator")[-1].outcome == "RUN_UNKNOWN"


def test_the_page_is_in_the_trail(audited):
    state = audited.directory / "state" / "coordinator"
    address, token = (state / "web.address").read_text().strip(), (state / "web.token").read_text().strip()
    with httpx.Client(base_url=address, verify=False) as browser:  # noqa: S501 (a certificate of the test's own)
        assert browser.get("/api/runs").status_code == 401
        refused = trail(audited, "coordinator")[-1]
        assert (refused.role, refused.action, refused.outcome) == ("web", "/api/runs", "HTTP 401")
        headers = {"authorization": f"Bearer {token}", "x-parley": "1"}
        assert browser.post("/api/runs/nobody/cancel", headers=headers).status_code == 404
        shown = browser.get("/api/audit", headers=headers).json()
    asked, refused = trail(audited, "coordinator")[-2:]
    assert (asked.action, asked.subject, asked.outcome) == ("cancel", "nobody", "admitted")
    assert refused.outcome == "RUN_UNKNOWN"
    assert [(line["sequence"], line["outcome"]) for line in shown[:2]] == [
        (refused.sequence, "RUN_UNKNOWN"),
        (asked.sequence, "admitted"),
    ]
    assert asked.address.startswith("127.0.0.1:")


def test_the_command_prints_a_table_and_json_lines(audited, capsys):
    import json

    from parley.commands.audit import audit

    config = audited.directory / "coordinator.yaml"
    audit(config, last=0, json=True)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["sequence"] for line in lines] == list(range(1, len(lines) + 1))
    audit(config, last=5, json=False)
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.endswith(f"unbroken; the newest seals all: {lines[-1]['digest']}")  # in one piece, to be copied
