"""What the protos can carry and what the manifest declares are the same."""

import importlib
import pkgutil
from collections import Counter

from parley import contracts
from parley.privacy.manifest import MANIFEST


def _fields():
    for module in pkgutil.walk_packages(contracts.__path__, "parley.contracts."):
        if module.name.endswith("_pb2"):
            for message in importlib.import_module(module.name).DESCRIPTOR.message_types_by_name.values():
                assert not message.nested_types, "list nested messages here before using them"
                yield from (field.full_name for field in message.fields)


def test_every_field_that_can_leave_is_in_the_manifest_and_nothing_else_is():
    assert sorted(_fields()) == sorted(entry.field for entry in MANIFEST)


def test_no_field_is_declared_twice():
    counts = Counter(entry.field for entry in MANIFEST)
    assert [field for field, count in counts.items() if count > 1] == []


def test_no_field_takes_anything():
    """No `Any`, no maps: the schema says what leaves."""
    for module in pkgutil.walk_packages(contracts.__path__, "parley.contracts."):
        if module.name.endswith("_pb2"):
            for message in importlib.import_module(module.name).DESCRIPTOR.message_types_by_name.values():
                for field in message.fields:
                    kind = field.message_type
                    assert kind is None or kind.full_name.startswith("parley."), field.full_name
                    assert kind is None or not kind.GetOptions().map_entry, field.full_name


def test_every_array_says_what_it_is_derived_from():
    for entry in MANIFEST:
        if entry.protection == "none needed":
            assert not entry.field.endswith((".data", ".sum", ".elements", ".theta", ".scores")), entry.field
