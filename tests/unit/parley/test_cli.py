"""The `parley` command, without a network: what it prints and how it exits."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from typer.testing import CliRunner

from parley.cli import app
from parley.services.wire.certificate_files import load_certificate
from parley.spec.run import RunSpec

ROOT = Path(__file__).parents[3]
MISTAKEN = """\
name: digits
parties: [bank, shop]
train:
  algorithm: bambi
  upper:
    steps: -1
    colour: red
"""


@pytest.fixture
def parley(tmp_path, monkeypatch):
    """Run the command in an empty folder, with no coordinator in the environment."""
    monkeypatch.chdir(tmp_path)
    for name in ("PARLEY_ADDRESS", "PARLEY_IDENTITY", "PARLEY_COORDINATOR"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments):
        return CliRunner().invoke(app, [str(argument) for argument in arguments])

    return run


def every_command():
    from typer.main import get_command

    def walk(command, path):
        for name, inner in getattr(command, "commands", {}).items():
            yield (*path, name), inner
            yield from walk(inner, (*path, name))

    return {path: command for path, command in walk(get_command(app), ()) if not hasattr(command, "commands")}


@pytest.mark.parametrize("path", every_command(), ids=" ".join)
def test_the_help_of_every_command_shows_an_example_of_itself(path, parley):
    result = parley(*path, "--help")
    assert result.exit_code == 0
    assert f"parley {' '.join(path)}" in " ".join(result.stdout.split("Example:")[1].split())


def test_check_names_every_mistake_with_its_line_and_exits_with_1(parley):
    Path("spec.yaml").write_text(MISTAKEN)
    result = parley("run", "check", "spec.yaml")
    assert result.exit_code == 1
    assert "spec.yaml:6: train" in result.stderr
    assert "spec.yaml:7: train" in result.stderr
    assert "no such field" in result.stderr


def test_check_as_json_holds_the_lines_too(parley):
    Path("spec.yaml").write_text(MISTAKEN)
    result = parley("run", "check", "spec.yaml", "--json")
    assert result.exit_code == 1
    assert {problem["line"] for problem in json.loads(result.stdout)["problems"]} == {6, 7}


def test_check_accepts_a_right_spec_and_prints_no_problems_as_json(parley):
    example = ROOT / "examples" / "digits-vfhrl.yaml"
    assert parley("run", "check", example).exit_code == 0
    assert json.loads(parley("run", "check", example, "--json").stdout) == {"problems": [], "forecast": None}


def test_a_spec_that_is_no_text_is_refused_in_one_line(parley):
    Path("spec.yaml").write_bytes(b"\xff\xfe\x00")
    result = parley("run", "check", "spec.yaml")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: a file is not UTF-8 text")


def test_a_file_that_is_not_there_is_a_usage_error(parley):
    result = parley("run", "check", "nowhere.yaml")
    assert result.exit_code == 2
    assert "nowhere.yaml" in result.stderr


def test_fields_documents_every_field_of_the_top_level_with_a_meaning(parley):
    fields = {field["path"]: field for field in json.loads(parley("run", "fields", "--json").stdout)}
    assert set(RunSpec.model_fields) <= set(fields)
    assert all(field["meaning"] for field in fields.values())
    assert fields["name"]["default"] == "required"
    assert fields["privacy.labels.mechanism"]["kind"] == "once | per_step | off"


def test_fields_of_a_section_are_only_those_of_the_section(parley):
    result = parley("run", "fields", "privacy.labels")
    assert result.exit_code == 0
    assert "privacy.labels.epsilon" in result.stdout
    assert "aggregation" not in result.stdout


@pytest.mark.parametrize("section", ["train.lower", "train(bambi).lower", "parties.columns", "parties[].columns"])
def test_fields_of_a_section_are_found_without_naming_the_alternative(parley, section):
    found = json.loads(parley("run", "fields", section, "--json").stdout)
    assert found
    assert all(field["path"].endswith("columns") or ".lower" in field["path"] for field in found)


def test_fields_of_an_unknown_section_are_refused_in_one_line(parley):
    result = parley("run", "fields", "privacy.colour")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: there is no field 'privacy.colour'")
    assert len(result.stderr.splitlines()) == 1


def test_without_an_address_the_error_names_the_environment_variable(parley):
    result = parley("run", "list")
    assert result.exit_code == 2
    assert "PARLEY_ADDRESS" in result.stderr


def test_a_mistaken_spec_is_refused_before_the_coordinator_is_called(parley):
    Path("spec.yaml").write_text(MISTAKEN)
    result = parley("run", "start", "spec.yaml", "--address", "127.0.0.1:1", "--identity", "nowhere")
    assert result.exit_code == 1
    assert "line 6" in result.stderr
    assert "Traceback" not in result.output


def test_a_missing_certificate_is_one_line_that_says_what_to_check(parley):
    result = parley("run", "list", "--address", "127.0.0.1:1", "--identity", "nowhere")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: nowhere/certificate.pem cannot be read")
    assert len(result.stderr.splitlines()) == 1


def test_a_coordinator_that_is_not_running_is_one_line_with_a_remedy(parley):
    parley("certs", "authority", "ca")
    parley("certs", "issue", "analyst", "--role", "client", "--authority", "ca", "--out", "analyst")
    result = parley("run", "list", "--address", "127.0.0.1:1", "--identity", "analyst")
    assert result.exit_code == 1
    assert "is the coordinator running" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_certificate_is_revoked_by_its_folder_or_its_file(parley):
    parley("certs", "authority", "ca")
    parley("certs", "issue", "bank", "--role", "party", "--authority", "ca", "--out", "bank")
    parley("certs", "issue", "shop", "--role", "party", "--authority", "ca", "--out", "shop")
    assert parley("certs", "revoke", "bank", "shop/certificate.pem", "--authority", "ca").exit_code == 0
    numbers = {load_certificate(Path(name) / "certificate.pem").serial_number for name in ("bank", "shop")}
    listed = x509.load_pem_x509_crl(Path("ca/revoked.pem").read_bytes())
    assert {each.serial_number for each in listed} == numbers


def test_certificates_are_made_requested_signed_and_shown(parley):
    assert parley("certs", "authority", "ca", "--name", "our-federation").exit_code == 0
    assert parley("certs", "request", "bank", "--role", "party", "--out", "bank").exit_code == 0
    signed = parley("certs", "sign", "bank/request.pem", "--authority", "ca", "--name", "bank", "--role", "party")
    assert signed.exit_code == 0, signed.output
    shown = json.loads(parley("certs", "show", "bank", "--json").stdout)
    assert (shown["role"], shown["name"], shown["issuer"]) == ("party", "bank", "CN=our-federation")
    assert json.loads(parley("certs", "show", "ca", "--json").stdout)["role"] == "authority"


def test_a_request_for_another_name_than_agreed_is_not_signed(parley):
    parley("certs", "authority", "ca")
    parley("certs", "request", "mallory", "--role", "party", "--out", "in")
    result = parley("certs", "sign", "in/request.pem", "--authority", "ca", "--name", "bank", "--role", "party")
    assert result.exit_code == 1
    assert "mallory" in result.stderr
    assert not Path("in/certificate.pem").exists()


def test_an_authority_is_not_overwritten_unless_forced(parley):
    parley("certs", "authority", "ca")
    before = Path("ca/ca.key").read_bytes()
    assert parley("certs", "authority", "ca").exit_code == 1
    assert Path("ca/ca.key").read_bytes() == before
    assert parley("certs", "authority", "ca", "--force").exit_code == 0
    assert Path("ca/ca.key").read_bytes() != before


def test_split_writes_one_file_for_each_party_and_lists_them_as_json(parley):
    result = parley("data", "split", "iris", "--parties", "bank, shop", "--out", "data", "--json")
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    assert summary["rows"] == 150
    assert [file["holder"] for file in summary["files"]] == ["bank", "shop", "labels"]
    assert all(Path(file["path"]).exists() for file in summary["files"])


@pytest.mark.parametrize(
    ("source", "parties", "expected"),
    [
        ("irises", "bank,shop", "neither a file"),
        ("iris", "a,b,c,d,e", "fewer columns"),
        ("broken.csv", "bank,shop", "broken.csv"),
    ],
)
def test_what_cannot_be_split_is_refused_in_one_line(source, parties, expected, parley):
    Path("broken.csv").write_text("id,a\n1,x\n")
    result = parley("data", "split", source, "--parties", parties, "--out", "data")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert expected in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_folder_that_cannot_be_written_is_one_line(parley):
    Path("data").write_text("a file, not a folder")
    result = parley("data", "split", "iris", "--parties", "bank,shop", "--out", "data")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: data: ")


@pytest.mark.parametrize("service", ["coordinator", "party"])
def test_a_service_with_a_mistaken_configuration_ends_with_one_line_and_2(service, tmp_path):
    (tmp_path / "service.yaml").write_text("name: bank\ncolour: red\n")
    command = [sys.executable, "-m", "parley", service, "--config", tmp_path / "service.yaml"]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert ended.returncode == 2
    assert "colour" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_bug_keeps_its_trace(monkeypatch, parley):
    monkeypatch.setattr("parley.spec.parsing.check_spec", lambda text: 1 / 0)
    result = parley("run", "check", ROOT / "examples" / "digits-vfhrl.yaml")
    assert isinstance(result.exception, ZeroDivisionError)


def test_importing_parley_loads_neither_grpc_nor_torch():
    loaded = "import sys, parley; print([name for name in ('grpc', 'torch', 'numpy') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", loaded], capture_output=True, text=True, cwd=ROOT).stdout == "[]\n"


def test_every_public_name_of_parley_can_be_had():
    import parley as package

    assert all(getattr(package, name) is not None for name in package.__all__)
    with pytest.raises(AttributeError, match="nonsense"):
        _ = package.nonsense


def test_the_example_is_the_spec_of_the_demo():
    assert (ROOT / "examples" / "digits-vfhrl.yaml").read_text() == (ROOT / "src" / "parley" / "demo.yaml").read_text()


@pytest.mark.parametrize("spec", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_example_spec_is_right(spec, parley):
    assert parley("run", "check", spec).exit_code == 0


@pytest.mark.parametrize("name", ["coordinator", "bank", "shop", "telco"])
def test_every_example_configuration_can_be_read(name):
    from parley.services.coordinator.config import CoordinatorConfig
    from parley.services.party.config import PartyConfig
    from parley.services.wire.configuration import load_config

    kind: type[Any] = CoordinatorConfig if name == "coordinator" else PartyConfig
    assert load_config(ROOT / "examples" / "federation" / f"{name}.yaml", kind).name == name


def test_a_refused_restore_and_a_broken_audit_trail_are_one_line(parley, tmp_path):
    config = tmp_path / "bank.yaml"
    config.write_text(
        "name: bank\nidentity: nowhere\nstate: state\ntables: {}\npolicy: {coordinators: [c], algorithms: [bambi]}\n"
    )
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "audit.jsonl").write_text("{}\n")
    archive = tmp_path / "bank.tar.gz"
    assert parley("backup", "--config", str(config), "--out", str(archive)).exit_code == 0
    for command in (["restore", str(archive)], ["audit"]):
        refused = parley(*command, "--config", str(config))
        assert refused.exit_code == 1, refused.output
        assert refused.stderr.startswith("error: "), refused.exception
        assert len(refused.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", [["audit"], ["backup", "--out", "x.tar.gz"], ["upgrade"]])
def test_a_relay_has_nothing_to_keep(parley, tmp_path, command):
    config = tmp_path / "relay.yaml"
    config.write_text("name: hub\nidentity: hub\nparties: [bank]\n")
    refused = parley(*command, "--config", str(config))
    assert (refused.exit_code, "configures a relay, which keeps no state" in refused.stderr) == (1, True)


def test_tokens_are_made_listed_and_revoked(parley, tmp_path):
    config = tmp_path / "coordinator.yaml"
    config.write_text("name: c\nidentity: nowhere\nstate: state\nparties: {}\nlabels: {}\n")
    options = ["--config", str(config)]
    made = parley("token", "create", "grafana", "--may", "watch", "--days", "9", *options)
    assert made.exit_code == 0, made.output
    (token,) = made.stdout.splitlines()  # TOKEN=$(parley token create …) holds nothing else
    assert token.startswith("parley_")
    (row,) = json.loads(parley("token", "list", "--json", *options).output)
    assert (row["name"], row["permissions"]) == ("grafana", ["watch"])
    assert token not in str(row)
    again = parley("token", "create", "grafana", "--may", "watch", *options)
    assert (again.exit_code, "revoke it first" in again.output) == (1, True)
    unknown = parley("token", "create", "ann", "--may", "everything", *options)
    assert (unknown.exit_code, "no permission" in unknown.output) == (2, True)
    assert parley("token", "revoke", "grafana", *options).exit_code == 0
    assert json.loads(parley("token", "list", "--json", *options).output) == []
