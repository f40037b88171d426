"""The web page over real processes: who gets in, what it shows and does, and that no private value gets out."""

import base64
import json
import re
import ssl
import stat
import time
import uuid

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from typer.testing import CliRunner

from parley.cli import app
from parley.client import RequestRefused
from parley.testing.federations import ForkedFederation

PARTIES = ("bank", "shop", "telco")
FEATURE, LABEL, BAD_CELL = "73123.4567", "secret-class-81", "unreadable-cell-4711"
"""Values that no log, page or metric may hold; features are near this number, one class has this name."""


def spec(**changes) -> str:
    content = {
        "name": "web",
        "parties": list(PARTIES),
        "train": {
            "algorithm": "bambi",
            "loss": "logistic",
            "model": {"kind": "linear"},
            "upper": {"steps": 4, "batch": 32},
            "lower": {"steps": 1, "batch": 32},
        },
        "privacy": {"labels": {"mechanism": "once", "epsilon": 4, "budget": 4}},
        "evaluate_every": 2,
        "checkpoint_every": 2,
        **changes,
    }
    return yaml.safe_dump(content)


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """A federation whose every feature and class name is a sentinel."""
    folder = tmp_path_factory.mktemp("web")
    random, rows = np.random.default_rng(0), 120
    sign = random.choice([-1.0, 1.0], rows)
    ids, tables = [f"r{row}" for row in range(rows)], {}
    for name in PARTIES:
        noise = random.normal(size=(rows, 3))
        features = float(FEATURE) + 1e-3 * (sign[:, None] + noise)
        columns = {"id": ids, **dict(zip("abc", features.T, strict=True))}
        pq.write_table(pa.table(columns), folder / f"{name}.parquet")
        (folder / f"{name}-broken.csv").write_text(f"id,a,b\n1,0.5,{BAD_CELL}\n2,1,2\n")
        tables[name] = {
            "train": {"path": folder / f"{name}.parquet", "standardise": True},
            "raw": {"path": folder / f"{name}.parquet"},
            "broken": {"path": folder / f"{name}-broken.csv"},
        }
    labels = {"id": ids, "label": np.where(sign > 0, LABEL, "other-class").tolist()}
    pq.write_table(pa.table(labels), folder / "labels.parquet")
    local = ForkedFederation(
        folder / "federation",
        tables,
        {name: {"path": folder / "labels.parquet"} for name in ("train", "raw", "broken")},
        coordinator_options={"web": {"listen": "127.0.0.1:0"}},
        party_options={"metrics_listen": "127.0.0.1:0"},
        ready_seconds=240,
    )
    with local:
        yield local


def state(federation):
    return federation.directory / "state" / "coordinator"


@pytest.fixture
def browser(watched):
    """An HTTP client that trusts the federation's authority and has not logged in."""
    trust = ssl.create_default_context(cafile=str(watched.identity("client") / "ca.pem"))
    with httpx.Client(
        base_url=(state(watched) / "web.address").read_text().strip(), verify=trust, timeout=60
    ) as client:
        yield client


@pytest.fixture
def page(browser, watched):
    """The same, logged in."""
    answer = browser.post("/login", data={"token": (state(watched) / "web.token").read_text()})
    assert answer.status_code == 303
    return browser


CHANGE = {"x-parley": "1"}


def start(page, text):
    return page.post("/api/runs", json={"spec": text, "request_id": uuid.uuid4().hex}, headers=CHANGE)


def until_ended(page, run_id):
    with page.stream("GET", f"/api/runs/{run_id}/events") as stream:
        return [json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: {")][:-1]


def test_nobody_gets_anything_without_the_token(browser):
    assert browser.base_url.scheme == "https"
    for path in ("/api/runs", "/api/parties", "/metrics", "/static/app.js", "/runs/x/card", "/nowhere"):
        assert browser.get(path).status_code == 401, path
    front = browser.get("/")
    assert front.status_code == 401
    assert "Token of this coordinator" in front.text
    assert browser.post("/api/runs", json={}, headers=CHANGE).status_code == 401
    assert browser.post("/login", data={"token": "guess"}).status_code == 401
    assert not browser.cookies


def test_the_token_is_for_its_owner_and_the_cookie_for_this_page(browser, watched):
    token = state(watched) / "web.token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    cookie = browser.post("/login", data={"token": token.read_text()}).headers["set-cookie"]
    assert cookie.startswith("__Host-parley=")
    assert {"httponly", "secure", "samesite=strict", "path=/"} <= {part.strip().lower() for part in cookie.split(";")}
    assert token.read_text().strip() not in cookie
    name, value = cookie.split(";")[0].split("=", 1)
    facts, _, seal = value.strip('"').partition(".")
    browser.cookies.clear()
    content = json.loads(base64.urlsafe_b64decode(facts))
    later = base64.urlsafe_b64encode(json.dumps(content | {"expires": content["expires"] + 1}).encode()).decode()
    longer = f'{name}="{later}.{seal}"'
    assert browser.get("/api/runs", headers={"cookie": longer}).status_code == 401, "an expiry cannot be moved"
    assert token.read_text().strip() not in (watched.directory / "coordinator.log").read_text()


def test_a_monitoring_system_shows_the_token_as_a_bearer(browser, watched):
    token = (state(watched) / "web.token").read_text().strip()
    answer = browser.get("/metrics", headers={"authorization": f"Bearer {token}"})
    assert answer.status_code == 200
    assert "parley_runs" in answer.text


def test_a_foreign_page_can_change_nothing(page):
    address = str(page.base_url).rstrip("/")
    body = {"spec": spec(), "request_id": "foreign"}
    for headers in ({}, {**CHANGE, "origin": "https://evil.example"}, {**CHANGE, "sec-fetch-site": "cross-site"}):
        assert page.post("/api/runs", json=body, headers=headers).status_code == 403
    assert page.post("/api/check", json=body, headers={**CHANGE, "origin": address}).status_code == 200


def test_a_body_that_does_not_say_its_length_is_limited_all_the_same(page):
    for path, kilobytes in (("/login", 8), ("/api/check", 3000)):
        answer = page.post(path, content=(b"x" * 1024 for _ in range(kilobytes)), headers=CHANGE)
        assert answer.status_code == 413, path


def test_every_answer_carries_the_security_headers(page):
    for path in ("/", "/api/runs", "/static/app.js", "/nowhere"):
        headers = page.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert "server" not in headers


def test_a_run_is_started_watched_and_shown(page):
    run_id = start(page, spec()).json()["run_id"]
    events = until_ended(page, run_id)
    assert events[-1]["run"]["state"] == "COMPLETED"
    assert [entry["event"]["sequence"] for entry in events] == list(range(1, len(events) + 1))
    bodies = {entry["event"]["kind"]: entry["event"]["body"] for entry in events}
    assert bodies["data"]["party"] in PARTIES
    assert "test accuracy" in bodies["evaluation"]["measured"]
    assert bodies["privacy"]["epsilon"] == pytest.approx(4)
    late = page.get(f"/api/runs/{run_id}/events", headers={"last-event-id": str(len(events) - 1)}).text
    assert late.count("event: run") == 1, "a browser that comes back gets only what it missed"
    ledger = page.get(f"/api/runs/{run_id}/ledger").json()
    assert ledger["epsilon"] == pytest.approx(4)
    assert [release["recipients"] for release in ledger["releases"]] == [sorted(PARTIES)]
    told = page.get(f"/api/runs/{run_id}/crossings").json()
    fields = [crossing["field"] for statement in told for crossing in statement["fields"]]
    assert "aggregation.v1.Addend.masked" in fields
    assert "aggregation.v1.Addend.clear" not in fields, "this run sums pairwise"
    assert run_id in [run["run_id"] for run in page.get("/api/runs").json()["runs"]]
    health = page.get("/api/parties").json()
    assert all(party["reachable"] and party["sent_bytes"] > 0 for party in health)


def test_the_same_request_starts_one_run(page):
    body = {"spec": spec(), "request_id": uuid.uuid4().hex}
    first, second = (page.post("/api/runs", json=body, headers=CHANGE).json()["run_id"] for _ in range(2))
    assert first == second
    until_ended(page, first)


def test_a_wrong_spec_is_told_line_by_line(page):
    problems = page.post("/api/check", json={"spec": spec() + "extra: 1\n"}, headers=CHANGE).json()["problems"]
    assert [(problem["field"], problem["line"]) for problem in problems] == [("extra", spec().count("\n") + 1)]
    refused = start(page, spec() + "extra: 1\n")
    assert refused.status_code == 400
    assert refused.json()["reason"] == "SPEC_INVALID"
    assert page.post("/api/check", content=b"nonsense", headers=CHANGE).status_code == 400
    assert page.get("/api/runs/nothing").json()["reason"] == "RUN_UNKNOWN"


def test_a_run_is_cancelled_and_resumed(page):
    slow = yaml.safe_load(spec())
    slow["train"]["upper"]["steps"] = 60
    run_id = start(page, yaml.safe_dump(slow)).json()["run_id"]
    assert page.post(f"/api/runs/{run_id}/cancel", headers=CHANGE).json()["state"] == "CANCELLED"
    assert page.post(f"/api/runs/{run_id}/cancel", headers=CHANGE).status_code == 409
    assert page.post(f"/api/runs/{run_id}/resume", headers=CHANGE).json()["state"] == "PENDING"
    assert until_ended(page, run_id)[-1]["run"]["state"] == "COMPLETED"


def test_metrics_count_rounds_bytes_runs_and_refusals(page, watched):
    run_id = start(page, spec()).json()["run_id"]
    until_ended(page, run_id)
    with watched.connect() as client, pytest.raises(RequestRefused):
        client.run("nothing")
    text = page.get("/metrics").text
    rounds = page.get(f"/api/runs/{run_id}").json()["metrics"]["rounds"]
    assert value(text, r'parley_rounds_total\{algorithm="bambi"\}') >= rounds
    assert value(text, r'parley_step_seconds_count\{algorithm="bambi"\}') >= rounds
    assert value(text, r'parley_edge_bytes_total\{direction="sent",party="bank"\}') > 0
    assert value(text, r'parley_runs\{state="COMPLETED"\}') >= 1
    assert value(text, r'parley_refusals_total\{[^}]*reason="RUN_UNKNOWN"\}') >= 1
    assert value(text, r"parley_sessions") == 0
    assert value(text, r"parley_sessions_opened_total") >= 1


def party_metrics(watched, name):
    port = re.search(r"metrics at port (\d+)", (watched.directory / f"{name}.log").read_text())[1]
    return httpx.get(f"http://127.0.0.1:{port}/metrics").text


def test_a_party_counts_its_own_rounds_and_refusals(page, watched):
    until_ended(page, start(page, spec()).json()["run_id"])
    assert start(page, spec(table="broken")).status_code == 409
    text = party_metrics(watched, "bank")
    exchange = 'method="/parley.party.v1.PartyService/Exchange"'
    assert value(text, r'parley_rounds_total\{algorithm="bambi"\}') > 0
    assert value(text, rf'parley_served_bytes_total\{{direction="sent",{exchange}\}}') > 0
    assert value(text, r'parley_refusals_total\{[^}]*reason="DATA_INVALID"\}') >= 1
    assert value(text, "parley_sessions_opened_total") >= 1


def value(text, pattern):
    found = re.search(rf"^{pattern} (\S+)$", text, re.MULTILINE)
    assert found, pattern
    return float(found[1])


def test_a_card_says_what_was_trained_on_what_and_at_what_price(page, watched):
    run_id = start(page, spec()).json()["run_id"]
    until_ended(page, run_id)
    card = page.get(f"/api/runs/{run_id}/card.json").json()
    assert card["run"]["state"] == "COMPLETED"
    assert "test accuracy" in card["metrics"]
    assert card["privacy"]["epsilon"] == pytest.approx(4)
    assert [(table["party"], table["rows"], table["columns"]) for table in card["data"]] == [
        (p, 120, 3) for p in PARTIES
    ]
    assert all(re.fullmatch("[0-9a-f]{64}", table["id_sha256"]) for table in card["data"])
    answer = page.get(f"/runs/{run_id}/card")
    assert "<script" not in answer.text
    assert run_id in answer.text
    assert "style-src 'sha256-" in answer.headers["content-security-policy"]


def test_the_command_writes_the_same_card(page, watched, tmp_path):
    run_id = start(page, spec()).json()["run_id"]
    until_ended(page, run_id)
    where = ["--address", watched.addresses["coordinator"], "--identity", str(watched.identity("client"))]
    files = ["--out", str(tmp_path / "card.html"), "--out", str(tmp_path / "card.json")]
    outcome = CliRunner().invoke(app, ["run", "card", run_id, *where, *files])
    assert outcome.exit_code == 0, outcome.output
    written, shown = json.loads((tmp_path / "card.json").read_text()), page.get(f"/api/runs/{run_id}/card.json").json()
    for card in (written, shown):
        del card["written"]
    assert written == shown
    assert run_id in (tmp_path / "card.html").read_text()


def test_no_private_value_is_logged_counted_or_shown(page, watched):
    """After a run, and after refusals that have read the data: a broken table, and a limit that would bisect."""
    run_id = start(page, spec()).json()["run_id"]
    until_ended(page, run_id)
    assert start(page, spec(table="broken")).json()["reason"] == "DATA_INVALID"
    tiny = {"aggregation": {"kind": "pairwise", "limit": 1e-6, "fraction_bits": 40}, "labels": {"mechanism": "off"}}
    assert start(page, spec(privacy=tiny)).json()["reason"] == "POLICY_REFUSED"
    unscaled = start(page, spec(table="raw")).json()["run_id"]
    until_ended(page, unscaled)  # however it ends
    time.sleep(0.2)
    written = {path.name: path.read_text() for path in watched.directory.glob("*.log")}
    assert written.keys() == {f"{name}.log" for name in (*PARTIES, "coordinator")}
    paths = ["/metrics", "/api/runs", "/api/parties", f"/runs/{run_id}/card"]
    paths += [f"/api/runs/{unscaled}", f"/api/runs/{run_id}/events"]
    written |= {path: page.get(path).text for path in paths}
    written |= {f"metrics of {name}": party_metrics(watched, name) for name in PARTIES}
    for place, text in written.items():
        for secret in (FEATURE[:5], LABEL, BAD_CELL, "of magnitude"):
            assert secret not in text, f"{place} holds {secret}"
    for name in PARTIES:
        lines = [json.loads(line) for line in written[f"{name}.log"].splitlines()]
        assert any("DATA_INVALID" in line["message"] and "line 2" in line["message"] for line in lines), (
            "its owner is still told where to look"
        )


def test_runs_are_searched_tagged_compared_predicted_with_and_deleted(page):
    first, second = start(page, spec(seed=1)).json()["run_id"], start(page, spec(seed=2)).json()["run_id"]
    for run in (first, second):
        until_ended(page, run)
    tagged = page.post(f"/api/runs/{first}/tags", json={"add": "baseline v1", "remove": ""}, headers=CHANGE).json()
    assert tagged["tags"] == ["baseline", "v1"]
    assert [run["run_id"] for run in page.get("/api/runs?search=baseline").json()["runs"]] == [first]
    page.post(f"/api/runs/{first}/tags", json={"add": "", "remove": "baseline"}, headers=CHANGE)
    assert page.get("/api/runs?search=baseline").json()["runs"] == []
    wrong = page.post(f"/api/runs/{first}/tags", json={"add": "two%words", "remove": ""}, headers=CHANGE)
    assert (wrong.status_code, wrong.json()["reason"]) == (400, "MESSAGE_INVALID")

    compared = page.get("/api/compare", params={"run": [first, second]}).json()
    assert compared["settings"] == {"seed": [1, 2]}
    assert [run["run_id"] for run in compared["runs"]] == [first, second]

    predicted = page.post(f"/api/runs/{first}/predict", json={"table": "", "ids": "r7, r3\nr5"}, headers=CHANGE).json()
    assert predicted["ids"] == ["r7", "r3", "r5"]
    assert sorted(predicted["classes"]) == ["other-class", LABEL]
    assert [len(row) for row in predicted["scores"]] == [1, 1, 1]

    assert page.post(f"/api/runs/{first}/delete", json={}).status_code == 403, "not without the page's own header"
    assert page.post(f"/api/runs/{first}/delete", json={}, headers=CHANGE).json() == {}
    assert page.get(f"/api/runs/{first}").status_code == 404


def test_a_check_on_the_page_foretells_what_the_run_sends(page):
    found = page.post("/api/check", json={"spec": spec()}, headers=CHANGE).json()
    assert found["problems"] == []
    assert found["forecast"]["rounds"] > 0
    assert page.post("/api/check", json={"spec": "name: x"}, headers=CHANGE).json()["forecast"] is None
