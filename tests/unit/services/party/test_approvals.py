"""A person's yes to a spec, and rows that somebody else names."""

import json
import stat
import time

import pytest
from typer.testing import CliRunner

from parley.cli import app
from parley.services.party import asked_rows
from parley.services.party.approvals import ApprovalMissing, Approvals, DigestUnknown
from parley.services.party.asked_rows import AskedRows, TooManyRowsAsked
from parley.spec.digests import spec_digest
from parley.spec.parsing import parse_spec

SPEC = "name: digits\nparties: [bank, shop]\ntrain: {algorithm: bambi, upper: {steps: 5}}\n"
DIGEST = spec_digest(parse_spec(SPEC))
CONFIG = """
name: bank
identity: .
state: state
tables: {}
policy: {coordinators: [hub], algorithms: [bambi], approval: required}
"""


def refused(approvals, digest=DIGEST):
    with pytest.raises(ApprovalMissing, match=digest):
        approvals.require("bank", digest, SPEC, "hub")


def test_a_spec_passes_once_its_owner_has_approved_it_and_until_that_is_taken_back(tmp_path):
    approvals = Approvals(tmp_path)
    with pytest.raises(DigestUnknown):
        approvals.approve(DIGEST)
    refused(approvals)
    assert [(asked.digest, asked.coordinator, asked.approved) for asked in approvals.asked()] == [
        (DIGEST, "hub", False)
    ]
    approvals.approve(DIGEST)
    approvals.require("bank", DIGEST, SPEC, "hub")
    refused(approvals, "0" * 64)
    Approvals(tmp_path).revoke(DIGEST)
    refused(approvals)


def test_what_was_asked_for_is_for_the_owner_alone(tmp_path):
    refused(Approvals(tmp_path))
    modes = {
        path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path, *tmp_path.rglob("*")) if path != tmp_path
    }
    assert modes == {"approvals": 0o700, f"{DIGEST}.asked": 0o600}


def test_the_command_lists_approves_and_revokes(tmp_path):
    path = tmp_path / "party.yaml"
    path.write_text(CONFIG)
    refused(Approvals(tmp_path / "state"))

    def parley(*words):
        return CliRunner().invoke(app, ["approve", *words, "--config", str(path), "--json"])

    listed = json.loads(parley("--list").output)
    assert [(each["digest"], each["approved"], each["parties"]) for each in listed] == [
        (DIGEST, False, ["bank", "shop"])
    ]
    assert json.loads(parley(DIGEST).output)["approved"]
    Approvals(tmp_path / "state").require("bank", DIGEST, SPEC, "hub")
    assert not json.loads(parley(DIGEST, "--revoke").output)["approved"]
    refused(Approvals(tmp_path / "state"))
    assert parley("0" * 64).exit_code != 0
    assert parley().exit_code != 0


def test_the_digest_is_of_what_a_spec_says_and_not_of_its_text():
    same = 'train: {upper: {steps: 5}, algorithm: "bambi"}\nparties:\n- {name: bank}\n- shop\nname: digits # comment\n'
    assert spec_digest(parse_spec(same)) == DIGEST
    other = SPEC.replace("steps: 5", "steps: 6")
    assert spec_digest(parse_spec(other)) != DIGEST


def test_rows_by_id_are_counted_over_restarts_and_refused_beyond_the_limit(tmp_path, monkeypatch):
    AskedRows(tmp_path, 10).count("bank", "hub", "run", "train", 6)
    log = AskedRows(tmp_path, 10)
    with pytest.raises(TooManyRowsAsked, match="6 rows by id"):
        log.count("bank", "hub", "run", "train", 5)
    log.count("bank", "other", "run", "train", 5)
    log.count("bank", "hub", "run", "train", 4)
    later = time.time() + asked_rows.DAY_SECONDS + 1
    monkeypatch.setattr(time, "time", lambda: later)
    log.count("bank", "hub", "run", "train", 10)
    lines = [json.loads(line) for line in (tmp_path / asked_rows.FILE).read_text().split("\n") if line]
    assert [(line["coordinator"], line["rows"]) for line in lines] == [
        ("hub", 6),
        ("other", 5),
        ("hub", 4),
        ("hub", 10),
    ]
