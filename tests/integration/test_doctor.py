"""`parley doctor` against real services: a whole federation, and each way in which one can be unwell."""

import json
import socket
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
import yaml
from typer.testing import CliRunner

from parley.cli import app
from parley.client import RequestRefused
from parley.services.wire.certificates import create_authority, issue
from parley.services.wire.version import VERSION
from parley.splitting import split_dataset
from parley.testing.federations import ForkedFederation
from tests.integration.conftest import spec

PARTIES = ("bank", "shop", "telco")


@pytest.fixture(scope="module")
def patient(tmp_path_factory):
    """Three parties: one of another version and with a fast clock, one with a table that cannot be read."""
    directory = tmp_path_factory.mktemp("patient")
    split_dataset("digits", PARTIES, directory / "data", limit=60)
    tables = {name: {"train": {"path": directory / "data" / f"{name}.parquet"}} for name in PARTIES}
    (directory / "broken.csv").write_text("id,a\n1,secret-4711,2\n")
    tables["shop"]["odd"] = {"path": directory / "broken.csv"}
    (directory / "words.csv").write_text("id,a\n1,secret-4711\n2,\n")
    tables["shop"]["fresh"] = {"path": directory / "words.csv"}
    (directory / "twice.csv").write_text("id,a\n1,2\n1,3\n")
    tables["shop"]["customers"] = {"path": directory / "twice.csv"}
    labels = {"train": {"path": directory / "data" / "labels.parquet"}}
    modules = {"telco": "tests.integration.other_version_party"}
    with ForkedFederation(directory, tables, labels, modules=modules) as local:
        yield local


def examine(*arguments):
    """The exit code, and every check by its subject."""
    result = CliRunner().invoke(app, ["doctor", *map(str, arguments), "--json"], env={"PARLEY_ADDRESS": None})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, {check["subject"]: check for check in json.loads(result.stdout)}


def of_federation(patient, **changes):
    """What the doctor says once no party is still looking through a table."""
    options = {"address": patient.addresses["coordinator"], "identity": patient.identity("client")} | changes
    for _ in range(20):
        code, checks = examine(*(part for name, value in options.items() for part in (f"--{name}", value)))
        if not any(check["finding"].startswith("loading") for check in checks.values()):
            break
    return code, checks


def states(checks):
    return {subject: check["state"] for subject, check in checks.items()}


def configured(patient, service, path, **changes):
    """A service's configuration on another port, with changes."""
    content = yaml.safe_load((patient.directory / f"{service}.yaml").read_text())
    content |= {"listen": "127.0.0.1:0", "identity": str(patient.identity(service)), "state": str(path / "state")}
    (path / f"{service}.yaml").write_text(yaml.safe_dump(content | changes))
    return path / f"{service}.yaml"


def test_an_installation_that_works_is_well():
    code, checks = examine()
    assert code == 0
    assert {"python", "packages", "torch", "working folder", "ports", "clock"} <= checks.keys()
    assert set(states(checks).values()) <= {"ok", "warning"}


def test_an_installation_is_examined_wherever_the_command_is_given(tmp_path):
    command = [sys.executable, "-m", "parley", "doctor", "--json"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert "torch" in {check["subject"] for check in json.loads(done.stdout)}, (
        "both roles are installed, with all they need"
    )


def test_a_federation_is_examined_party_by_party(patient):
    code, checks = of_federation(patient)
    found = states(checks)
    assert code == 1
    assert {subject for subject, state in found.items() if state == "broken"} == {
        "party telco version",
        "party shop table odd",
    }
    for good, remedy in (("fresh", "needs `preprocess`"), ("customers", "parley align --duplicates")):
        assert found[f"party shop table {good}"] == "warning"
        assert remedy in checks[f"party shop table {good}"]["remedy"]
    for well in ("own certificate", "coordinator", "coordinator version", "coordinator clock", "party bank"):
        assert found[well] == "ok"
    for party in PARTIES:
        assert found[f"party {party} certificate"] == "ok"
        assert found[f"party {party} clock"] == ("warning" if party == "telco" else "ok")
        assert checks[f"party {party} table train"]["finding"].startswith("60 rows")
        assert "bambi" in checks[f"party {party} policy"]["finding"]
    assert "s ahead" in checks["party telco clock"]["finding"]
    assert "9.9.9" in checks["party telco version"]["finding"]
    assert checks["party telco version"]["remedy"] == "upgrade whoever is behind"
    assert "4711" not in json.dumps(checks)


def test_a_run_without_a_common_protocol_is_refused_with_who_has_to_upgrade(patient):
    with patient.connect() as client, pytest.raises(RequestRefused) as refused:
        client.start(spec(table="train", parties=list(PARTIES)))
    assert refused.value.reason == "VERSION_MISMATCH"
    own = f"the coordinator (Parley {VERSION}) speaks protocol 2 and 3"
    assert f"telco (Parley 9.9.9) speaks protocol 9; {own}" in str(refused.value)
    assert "upgrade the coordinator, bank, shop to Parley 9.9.9" in str(refused.value)


def test_a_stopped_party_and_a_stopped_coordinator_are_named(patient):
    patient.kill("shop")
    try:
        code, checks = of_federation(patient)
        assert (code, checks["party shop"]["state"]) == (1, "broken")
        assert "start it" in checks["party shop"]["remedy"]
        assert checks["party bank"]["state"] == "ok"
    finally:
        patient.restart("shop")
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        code, checks = of_federation(patient, address=f"127.0.0.1:{nobody.getsockname()[1]}")
    assert (code, checks["coordinator"]["state"]) == (1, "broken")


def test_a_coordinator_of_another_name_or_another_authority_is_told_apart(patient, tmp_path):
    _, checks = of_federation(patient, coordinator="hub")
    assert "is not coordinator hub" in checks["coordinator"]["finding"]
    create_authority(tmp_path / "authority", "another")
    issue(tmp_path / "authority", "client", "client", ["localhost"])
    _, checks = of_federation(patient, identity=tmp_path / "client")
    assert "authority" in checks["coordinator"]["remedy"]
    _, checks = of_federation(patient, identity=patient.identity("bank"))
    assert (checks["own certificate"]["state"], "not for a client" in checks["own certificate"]["finding"]) == (
        "broken",
        True,
    )


def expired(folder):
    """An identity that was valid for a day, a year ago."""
    then = datetime.now(UTC) - timedelta(days=400)
    create_authority(folder / "authority", "old", now=then)
    issue(folder / "authority", "bank", "party", ["localhost"], days=1, now=then)
    return folder / "bank"


def test_a_configuration_is_examined_before_its_service_starts(patient, tmp_path):
    code, checks = examine("--config", configured(patient, "bank", tmp_path))
    assert code == 0
    assert states(checks)["policy"] == "warning", "sums of two parties are accepted by default"
    assert {checks[name]["state"] for name in ("configuration", "certificate", "port", "state", "table train")} == {
        "ok"
    }
    code, checks = examine("--config", configured(patient, "coordinator", tmp_path))
    assert (code, checks["labels train"]["state"]) == (0, "ok")
    assert "10 classes" in checks["labels train"]["finding"]
    assert {checks[f"party {party}"]["state"] for party in PARTIES} == {"ok"}
    assert not (tmp_path / "state").exists(), "nothing is made by looking"


def test_a_relays_configuration_is_examined_too(tmp_path):
    create_authority(tmp_path / "authority", "another")
    issue(tmp_path / "authority", "hub", "relay", [], out=tmp_path / "hub")
    config = tmp_path / "relay.yaml"
    config.write_text("name: hub\nlisten: 127.0.0.1:0\nidentity: hub\nparties: [bank, shop]\n")
    code, checks = examine("--config", config)
    assert code == 0
    assert {check["state"] for check in checks.values()} == {"ok"}
    assert checks["configuration"]["finding"] == "relay hub, for bank and shop"
    assert checks["certificate"]["finding"].startswith("relay hub")
    config.write_text("name: nave\nlisten: 127.0.0.1:0\nidentity: hub\n")
    _, checks = examine("--config", config)
    assert checks["configuration"]["finding"] == "relay nave, for every party of the authority"
    assert checks["certificate"]["state"] == "broken"
    config.write_text("name: hub\nidentity: hub\nparties: [bank]\nconections: 9\n")
    code, checks = examine("--config", config)
    assert code == 1
    assert "connections" in checks["configuration"]["finding"] + checks["configuration"]["remedy"]


def test_good_tables_of_a_configuration_are_not_called_broken(patient, tmp_path):
    code, checks = examine("--config", configured(patient, "shop", tmp_path))
    assert code == 1, "odd is broken indeed"
    found = states(checks)
    assert found["table odd"] == "broken"
    assert (found["table fresh"], found["table customers"]) == ("warning", "warning")
    assert "columns of words ('a') and missing values ('a')" in checks["table fresh"]["finding"]


@pytest.mark.parametrize(
    ("changes", "subject", "text"),
    [
        ({"listen": "TAKEN"}, "port", "stop what listens there"),
        ({"identity": "EXPIRED"}, "certificate", "expired"),
        ({"identity": "/nowhere"}, "certificate", "cannot be read"),
        ({"name": "shop"}, "certificate", "the configuration says shop, the certificate bank"),
        ({"state": "/proc/nowhere"}, "state", "cannot be written"),
        ({"tables": {"train": {"path": "/nowhere.csv"}}}, "table train", "no such file"),
        (
            {"policy": {"coordinators": ["coordinator"], "algorithms": ["bambi"], "tables": ["other"]}},
            "configuration",
            "opens 'other'",
        ),
        ({"policy": {"coordinators": ["another"], "algorithms": ["bambi"]}}, "policy", "refuses coordinator"),
        ({"database": "postgresql+psycopg://u:s3cret@127.0.0.1:1/d"}, "database", "cannot be opened"),
        ({"colour": "red"}, "configuration", "colour"),
        ({"policy": {"coordinators": ["coordinator"], "algorithms": ["bambii"]}}, "configuration", "mean `bambi`?"),
    ],
)
def test_what_would_keep_a_party_from_working_is_found_and_a_remedy_given(patient, tmp_path, changes, subject, text):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        if changes.get("listen"):
            changes = {"listen": f"127.0.0.1:{taken.getsockname()[1]}"}
        if changes.get("identity") == "EXPIRED":
            changes = {"identity": str(expired(tmp_path))}
        result = CliRunner().invoke(app, ["doctor", "--config", str(configured(patient, "bank", tmp_path, **changes))])
    assert result.exit_code == 1
    line = next(line for line in result.stdout.splitlines() if line.startswith(f"✗ {subject}: "))
    assert text in line
    assert " → " in line, "every ✗ says what to do"
    assert "s3cret" not in result.stdout
