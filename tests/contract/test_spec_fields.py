"""Specs of earlier versions are read: no field that one knew has gone, and digests leave younger ones out."""

import importlib

import pytest

from parley.spec.digests import first_fields


@pytest.mark.parametrize(("section", "fields"), first_fields().items())
def test_every_field_of_the_first_list_is_there_still(section, fields):
    module, _, name = section.rpartition(".")
    known = getattr(importlib.import_module(f"parley.{module}"), name).model_fields
    assert fields <= known.keys(), "a party of the version before, and runs that go on after an upgrade, need it"
