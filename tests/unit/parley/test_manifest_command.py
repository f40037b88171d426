"""`parley manifest`: what an auditor reads is the manifest, whole."""

import json

import pytest
from typer.testing import CliRunner

from parley.cli import app
from parley.commands import manifest as command
from parley.display import console
from parley.privacy.manifest import MANIFEST, OTHER_LEAKS, PUBLIC
from parley.protocols.manifest import whole_manifest
from parley.protocols.protocol import protocol_of
from parley.spec.algorithms import installed

runner = CliRunner()


def printed(*arguments):
    result = runner.invoke(app, ["manifest", *arguments])
    assert result.exit_code == 0
    return result.stdout


def test_as_json_it_is_the_whole_manifest_with_the_leaks_that_are_no_fields():
    found = json.loads(printed("--json"))
    entries = [(each["field"], each["derived_from"], each["protection"], each["seen_by"]) for each in found["fields"]]
    assert entries == [(e.field, e.derived_from, e.protection, e.seen_by) for e in whole_manifest()]
    assert [each["channel"] for each in found["other_leaks"]] == [leak.channel for leak in OTHER_LEAKS]


@pytest.mark.parametrize("name", sorted(installed()))
def test_of_one_algorithm_it_has_what_every_run_has_and_what_that_one_adds(name):
    found = json.loads(printed(name, "--json"))["fields"]
    common = {each["field"] for each in found if each["algorithm"] == "every"}
    own = {each["field"] for each in found if name in each["algorithm"].split(", ")}
    assert common == {entry.field for entry in MANIFEST}
    assert own == {entry.field for entry in protocol_of(installed()[name]).crossings}
    assert len(found) == len(common) + len(own)


def test_the_tables_name_every_field_and_count_those_that_are_private(monkeypatch):
    monkeypatch.setattr(console, "width", 400)
    text = printed()
    for entry in whole_manifest():
        message, _, field = entry.field.removeprefix("parley.").rpartition(".")
        assert f"{message}.{field}" in text if entry.derived_from != PUBLIC else message in text
        assert field in text
    private = sum(entry.derived_from != PUBLIC for entry in MANIFEST)
    assert f"Every run: {private} fields derived from somebody's records" in text


def test_a_narrow_terminal_breaks_names_after_the_version(monkeypatch):
    monkeypatch.setattr(console, "width", 80)
    assert command._short("parley.alignment.v1.Matches.total") == "alignment.v1\nMatches.total"
    assert command._short("org.acme.Message.field") == "org.acme.Message.field"


def test_an_unknown_algorithm_is_refused_with_those_that_are_installed():
    result = runner.invoke(app, ["manifest", "nope"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no algorithm 'nope' is installed here, only asysqn, bambi" in result.stderr
