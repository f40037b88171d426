"""What the protos can carry and what the manifest declares are the same."""

import importlib
import pkgutil
from collections import Counter

from google.protobuf.descriptor import FieldDescriptor

from parley import contracts
from parley.privacy.manifest import NONE_NEEDED, PUBLIC
from parley.protocols.manifest import whole_manifest
from parley.protocols.protocol import protocol_of
from parley.spec.algorithms import installed

MANIFEST = tuple(entry for entry in whole_manifest() if entry.field.startswith("parley."))
"""Of Parley's own protos. What an algorithm's numbers are derived from is looked at in tests/contract_suite."""
PUBLIC_BYTES = {
    "aggregation.v1.SignedKey.public_key": "a key that is made to be known",
    "aggregation.v1.SignedKey.certificate": "shown to everyone who connects",
    "aggregation.v1.SignedKey.signature": "over public values",
    "aggregation.v1.Agreement.spec_digest": "of a spec that everyone has",
    "aggregation.v1.Agreement.nonce": "random",
    "aggregation.v1.SharesStep.instruction": "of an instruction that the participants get",
    "aggregation.v1.Receipt.consent": "of what all parties were told",
    "aggregation.v1.Receipt.released": "of messages that were released",
    "aggregation.v1.Receipt.ledger_head": "of an entry that the label holder's clients see",
    "aggregation.v1.Receipt.signature": "over public values",
    "aggregation.v1.PairHead.head": "of instructions that both parties got",
    "party.v1.ExchangeRequest.ledger_head": "of an entry that the label holder's clients see",
    "aggregation.v1.RoundKey.public_key": "a key that is made to be known",
    "aggregation.v1.Disclosure.next_key": "a key that is made to be known",
    "aggregation.v1.Addend.further_participants": "who takes part, as the coordinator said",
    "aggregation.v1.DisclosureStep.further_survivors": "who has answered",
    "fedbio.v1.Instruction.further_participants": "who takes part, drawn from the spec's seed",
    "fedbio.v1.SettledSum.further_participants": "who took part in a sum that is open",
    "alignment.v1.TableSlots.salt": "random",
    "alignment.v1.SignedKey.public_key": "a key that is made to be known",
    "ledger.v1.LedgerEntry.hash": "over an entry that the client sees",
}
"""Bytes that hold nothing of anyone's records, and why."""


def _messages():
    for module in pkgutil.walk_packages(contracts.__path__, "parley.contracts."):
        if module.name.endswith("_pb2"):
            for message in importlib.import_module(module.name).DESCRIPTOR.message_types_by_name.values():
                assert not message.nested_types, "list nested messages here before using them"
                yield message


def _fields():
    return [field for message in _messages() for field in message.fields]


def _derived():
    return {entry.field.removeprefix("parley.") for entry in MANIFEST if entry.protection != NONE_NEEDED}


def test_every_field_that_can_leave_is_in_the_manifest_and_nothing_else_is():
    assert sorted(field.full_name for field in _fields()) == sorted(entry.field for entry in MANIFEST)


def test_no_field_is_declared_twice():
    counts = Counter(entry.field for entry in MANIFEST)
    assert [field for field, count in counts.items() if count > 1] == []


def test_no_field_takes_anything():
    """No `Any`, no maps: the schema says what leaves."""
    for field in _fields():
        kind = field.message_type
        assert kind is None or kind.full_name.startswith("parley."), field.full_name
        assert kind is None or not kind.GetOptions().map_entry, field.full_name


def test_every_tensor_and_every_addend_says_what_it_is_derived_from():
    arrays = {"parley.tensor.v1.Tensor", "parley.aggregation.v1.Addend", "parley.aggregation.v1.MaskedTheta"}
    for field in _fields():
        if field.message_type is not None and field.message_type.full_name in arrays:
            assert field.full_name.removeprefix("parley.") in _derived(), field.full_name


def test_bytes_say_what_they_are_derived_from_or_why_they_are_public():
    bare = {field.full_name.removeprefix("parley.") for field in _fields() if field.type == FieldDescriptor.TYPE_BYTES}
    assert bare - _derived() <= PUBLIC_BYTES.keys()


def test_what_holds_nothing_private_needs_no_protection_and_the_other_way_round():
    for entry in MANIFEST:
        assert (entry.derived_from == PUBLIC) == (entry.protection == NONE_NEEDED), entry.field


def test_an_algorithm_declares_the_fields_of_its_own_messages():
    for name, algorithm in installed().items():
        protocol = protocol_of(algorithm)
        declared = {entry.field for entry in protocol.crossings}
        for message in (protocol.instruction, protocol.contribution, *protocol.peer_messages):
            for field in message.DESCRIPTOR.fields:
                assert field.full_name in declared, f"{name}: {field.full_name}"
