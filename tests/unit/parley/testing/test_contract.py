"""The contract suite notices what it is there to notice."""

from dataclasses import replace

import pytest

import tests.contract_suite.test_asysqn as asysqn
import tests.contract_suite.test_bambi as bambi
from parley.protocols.manifest import manifest_of
from parley.testing import contract
from parley.testing.hand_driven import Outcome


def test_a_field_that_is_not_in_the_manifest_is_noticed(monkeypatch):
    kept = [entry for entry in manifest_of("bambi") if not entry.field.endswith("IntermediateGradient.theta")]
    monkeypatch.setattr(contract, "manifest_of", lambda _: kept)
    with pytest.raises(AssertionError, match=r"IntermediateGradient\.theta is not in the manifest"):
        bambi.TestBambi().test_every_field_of_its_messages_is_in_the_manifest_and_nothing_else_is()


def test_a_number_without_protection_is_noticed_unless_the_case_says_why(monkeypatch):
    suite = asysqn.TestAsysqn()
    suite.test_numbers_and_bytes_say_what_they_are_derived_from()
    monkeypatch.setattr(asysqn.TestAsysqn, "case", replace(suite.case, public={}))
    with pytest.raises(AssertionError):
        suite.test_numbers_and_bytes_say_what_they_are_derived_from()


def test_a_setting_that_is_taken_although_it_is_wrong_is_noticed():
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        contract.refused(bambi.SPEC, "regularisation", 0.5)


def test_an_internal_error_is_no_refusal_by_name():
    assert Outcome((), "INVALID_ARGUMENT", "MESSAGE_INVALID").is_named
    assert Outcome(("answered",)).is_named
    assert not Outcome((), "INTERNAL", "INTERNAL").is_named
    assert not Outcome((), "UNKNOWN", None).is_named
