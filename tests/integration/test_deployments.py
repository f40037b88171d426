"""Deployed models: real processes that answer by rows, swap versions, come back, and hold to each owner's policy."""

import json
import threading
import time

import httpx
import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from parley.cli import app
from parley.client import RequestRefused
from parley.services.party.asked_rows import FILE
from parley.services.wire.audit import read_trail
from parley.splitting import split_dataset
from parley.testing.federations import ForkedFederation

PARTIES = ("bank", "shop", "telco")
SPEC = """
name: served
seed: {seed}
parties: [bank, shop, telco]
train: {{algorithm: bambi, model: {{kind: mlp, hidden: [8], out: 4}}, upper: {{steps: 2}}, lower: {{steps: 1}}}}
privacy: {{labels: {{mechanism: "off"}}}}
"""
LINEAR = """
name: linear
parties: [bank, shop, telco]
train: {algorithm: glm, penalty: {strength: 0.1}}
privacy: {labels: {mechanism: "off"}}
"""


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    directory = tmp_path_factory.mktemp("deployments")
    split_dataset("breast_cancer", PARTIES, directory / "data", standardise=True, limit=200)
    files = {name: directory / "data" / f"{name}.parquet" for name in PARTIES}
    (directory / "open-rows.txt").write_text("\n".join(ids_of(files["bank"])[:150]))
    with ForkedFederation(
        directory,
        {name: {"train": {"path": path}} for name, path in files.items()},
        {"train": {"path": directory / "data" / "labels.parquet"}},
        policy={"predictions": {"rows_per_day": 10_000_000, "given": ["bank"]}},
        policies={
            "telco": {
                "predictions": {
                    "rows_per_day": 10_000_000,
                    "given": ["bank"],
                    "rows": str(directory / "open-rows.txt"),
                    "callers": ["client", "page"],
                }
            }
        },
        coordinator_options={"web": {"listen": "127.0.0.1:0", "insecure_http": True}},
    ) as running:
        yield running


@pytest.fixture(scope="module")
def client(local):
    with local.connect() as connected:
        yield connected


@pytest.fixture(scope="module")
def runs(client):
    started = [client.start(SPEC.format(seed=seed)) for seed in (1, 2)]
    for run in started:
        run.result()
    return started


def ids_of(path) -> list[str]:
    return sorted((str(each) for each in pq.read_table(path)["id"].to_pylist()), key=int)


def rows_of(local) -> list[str]:
    return ids_of(local.directory / "data" / "bank.parquet")


def command(local, *arguments):
    options = ["--address", local.addresses["coordinator"], "--identity", str(local.identity("client"))]
    return CliRunner().invoke(app, [*arguments, *options])


def test_a_deployed_model_answers_as_a_prediction_of_the_run_does(local, client, runs):
    ids = rows_of(local)[:40]
    deployed = client.deploy(runs[0], "answers")
    expected = runs[0].predict(ids=ids)
    assert np.abs(deployed.predict(ids).scores - expected.scores).max() < 1e-9
    assert np.abs(client.predict("answers", ids=ids).scores - expected.scores).max() < 1e-9
    shown = command(local, "predict", "answers", "--ids", ids[3], "--json")
    assert json.loads(shown.stdout)[0]["id"] == ids[3]
    listed = json.loads(command(local, "deployments", "list", "--json").stdout)
    assert [(each["name"], each["state"], each["version"]) for each in listed] == [("answers", "SERVING", 1)]


def test_a_linear_model_is_served_too(local, client):
    run = client.start(LINEAR)
    run.result()
    ids = rows_of(local)[:10]
    deployed = client.deploy(run, "linear")
    assert np.abs(deployed.predict(ids).scores - run.predict(ids=ids).scores).max() < 1e-9
    deployed.undeploy()
    with pytest.raises(RequestRefused, match="nothing is deployed as linear"):
        deployed.predict(ids)


def test_requests_that_come_together_are_summed_together(local, client, runs):
    ids = rows_of(local)[:150]
    deployed = client.deploy(runs[0], "together")
    expected = dict(zip(ids, runs[0].predict(ids=ids).scores, strict=True))
    wrong: list[str] = []

    def ask(own):
        for each in own:
            if np.abs(deployed.predict(each).scores[0] - expected[each]).max() > 1e-9:
                wrong.append(each)

    callers = [threading.Thread(target=ask, args=(ids[start::16],)) for start in range(16)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    (status,) = [each.message for each in client.deployments() if each.name == "together"]
    assert not wrong
    assert status.rows == len(ids)
    assert status.sums < len(ids)


def test_a_row_that_somebody_lacks_is_refused_alone(local, client, runs):
    ids = rows_of(local)
    deployed = client.deploy(runs[0], "lacking")
    with pytest.raises(RequestRefused, match="no such row") as refused:
        deployed.predict([ids[0], "nobody"])
    assert refused.value.reason == "ROWS_DIFFER"
    with pytest.raises(RequestRefused, match="telco has no such row"):  # its policy opens the first 150 rows
        deployed.predict(ids[199])
    assert len(deployed.predict(ids[:3]).ids) == 3


def test_versions_swap_twenty_times_without_a_wrong_or_missing_answer(local, client, runs):
    ids = rows_of(local)[:100]
    expected = {run.run_id: run.predict(ids=ids).scores for run in runs}
    client.deploy(runs[0], "swapped")
    done, wrong, asked = threading.Event(), [], [0]

    def ask(offset):
        with local.connect() as own:
            deployed, row = own.deployment("swapped"), offset
            while not done.is_set():
                row = (row + 1) % len(ids)
                try:
                    answer = deployed.ask(ids[row])
                except RequestRefused as refused:
                    wrong.append(str(refused))
                    return
                asked[0] += 1
                if np.abs(answer.prediction.scores[0] - expected[answer.run_id][row]).max() > 1e-9:
                    wrong.append(f"{answer.run_id} {row}")

    callers = [threading.Thread(target=ask, args=(offset,)) for offset in range(4)]
    for caller in callers:
        caller.start()
    for swap in range(20):
        client.deploy(runs[(swap + 1) % 2], "swapped")
    done.set()
    for caller in callers:
        caller.join()
    assert not wrong
    assert asked[0] > 20
    back = command(local, "deploy", "rollback", "swapped", "--json")
    assert json.loads(back.stdout)["version"] == 20
    assert client.deployment("swapped").ask(ids[0]).version == 20


def test_a_caller_brings_the_features_of_its_own_block(local, client, runs):
    table = pq.read_table(local.directory / "data" / "bank.parquet").to_pydict()
    known = [str(each) for each in table.pop("id")]
    ids = rows_of(local)[:4]
    rows = [known.index(each) for each in ids]
    features = {column: [values[row] for row in rows] for column, values in table.items()}
    deployed = client.deploy(runs[0], "brought")
    expected = runs[0].predict(ids=ids).scores
    assert np.abs(deployed.predict(ids, {"bank": features}).scores - expected).max() < 1e-6
    moved = {column: [value + 1 for value in values] for column, values in features.items()}
    assert np.abs(deployed.predict(ids, {"bank": moved}).scores - expected).max() > 1e-4
    with pytest.raises(RequestRefused, match=r"predictions\.given"):
        deployed.predict(ids, {"shop": {"some": [1.0] * 4}})
    with pytest.raises(RequestRefused, match="columns that the run was trained on"):
        deployed.predict(ids, {"bank": {"some": [1.0] * 4}})


def test_deployments_outlast_restarts(local, client, runs):
    ids = rows_of(local)[:5]
    deployed = client.deploy(runs[0], "lasting")
    expected = deployed.predict(ids).scores
    local.kill("shop")
    local.restart("shop")
    assert np.abs(answered(deployed, ids) - expected).max() < 1e-9
    local.kill("coordinator")
    local.restart("coordinator")
    with local.connect() as again:
        assert np.abs(answered(again.deployment("lasting"), ids) - expected).max() < 1e-9


def answered(deployed, ids):
    """Scores, as soon as the session is open again."""
    import time

    for _ in range(240):
        try:
            return deployed.predict(ids).scores
        except RequestRefused as refused:
            if refused.reason not in ("DEPLOYMENT_AWAY", "PARTY_UNREACHABLE", "UNAVAILABLE"):
                raise
            time.sleep(0.5)
    raise AssertionError("the deployment did not come back")


def test_a_party_withdraws_and_comes_back(local, runs):
    with local.connect() as client:
        ids = rows_of(local)[:2]
        deployed = client.deploy(runs[1], "withdrawn")
        config = ["--config", str(local.directory / "bank.yaml")]
        assert CliRunner().invoke(app, ["withdraw", runs[1].run_id, *config]).exit_code == 0
        deadline = time.monotonic() + 60  # a session looks once a second whether its owner has withdrawn it
        said = ""
        while "withdrawn" not in said:
            assert time.monotonic() < deadline, "the deployment answers although a party has withdrawn"
            try:
                deployed.predict(ids)
            except RequestRefused as refused:
                said = str(refused)
        with pytest.raises(RequestRefused, match="withdrawn"):
            client.deploy(runs[1], "withdrawn")
        assert CliRunner().invoke(app, ["withdraw", runs[1].run_id, "--undo", *config]).exit_code == 0
        assert len(client.deploy(runs[1], "withdrawn").predict(ids).ids) == 2


def test_what_was_asked_stands_in_the_audit_trail_and_in_the_parties_books(local, runs):
    with local.connect() as client:
        client.deploy(runs[0], "noted").predict(rows_of(local)[:3])
        client.deployment("noted").undeploy()
    actions = [entry.action.rpartition("/")[2] for entry in read_trail(local.directory / "state/coordinator")]
    assert {"Deploy", "PredictRows", "Undeploy"} <= set(actions)
    asked = [
        json.loads(line) for line in (local.directory / "state/bank" / FILE).read_text().splitlines() if "noted" in line
    ]
    assert sum(entry["rows"] for entry in asked) == 3  # counted a block ahead, the rest given back
    assert {entry["caller"] for entry in asked} == {"client"}
    assert any("deployment noted" in entry.subject for entry in read_trail(local.directory / "state/bank"))


def test_programs_ask_over_rest_with_the_pages_token(local, runs):
    state = local.directory / "state/coordinator"
    address, token = ((state / name).read_text().strip() for name in ("web.address", "web.token"))
    ids = rows_of(local)[:2]
    with local.connect() as client, httpx.Client(base_url=address, timeout=60) as web:
        expected = client.deploy(runs[0], "rest").predict(ids).scores
        path, question = "/api/deployments/rest/predictions", {"ids": [int(ids[0]), ids[1]]}
        bearer = {"authorization": f"Bearer {token}"}
        assert web.post(path, json=question).status_code == 401
        assert web.post(path, json=question, headers=bearer).status_code == 403, "the header is missing"
        whole = bearer | {"x-parley": "1"}
        answer = web.post(path, json=question, headers=whole).json()
        assert np.abs(np.array(answer["scores"]) - expected).max() < 1e-9
        assert answer["version"] == 1
        assert web.post("/api/deployments/nothing/predictions", json=question, headers=whole).status_code == 404
        refused = web.post(path, json={"ids": ["nobody"]}, headers=whole)
        assert (refused.status_code, refused.json()["reason"]) == (409, "ROWS_DIFFER")
        for wrong in ({}, {"ids": [True]}, {"ids": "1"}, {"ids": [], "features": {}}, {"ids": ["1"], "features": 3}):
            assert web.post(path, json=wrong, headers=whole).status_code == 400, wrong
        described = web.get("/api/openapi.json", headers=bearer).json()
        told = described["paths"][path.replace("rest", "{name}")]["post"]["responses"]
        assert set(told) == {"200", "400", "401", "403", "404", "409", "413", "429", "503"}
        assert web.post(path, content=b" " * 3_000_000, headers=whole).status_code == 413
        assert "rest" in [each["name"] for each in web.get("/api/deployments", headers=bearer).json()]


def test_a_deployed_run_is_not_deleted(local, runs):
    with local.connect() as client:
        deployed = client.deploy(runs[0], "kept")
        with pytest.raises(RequestRefused, match="is deployed"):
            client.run(runs[0].run_id).delete()
        deployed.undeploy()
