"""Addends and partial sums as protos."""

from collections.abc import Mapping
from typing import Any, TypeVar

from google.protobuf.descriptor import EnumDescriptor

from parley.contracts.aggregation.v1 import aggregation_pb2 as sums_pb
from parley.privacy.release import Addend, Release, TreeName, TreeSum
from parley.protocols.aggregation.party_sets import further_bits, low_bits, party_bits
from parley.protocols.tensor.codec import Blobs, MessageInvalid, decode_tensor, encode_tensor

Name = TypeVar("Name", bound=str)
_TREES: dict[TreeName, sums_pb.Tree.ValueType] = {"values": sums_pb.TREE_VALUES, "masks": sums_pb.TREE_MASKS}


def encode_addend(release: Release[Addend], blobs: Blobs, into: sums_pb.Addend | None = None) -> sums_pb.Addend:
    """A party's part of a sum, in a field of a message or by itself."""
    addend, message = release.content, sums_pb.Addend() if into is None else into
    message.participants = low_bits(addend.participants)
    message.further_participants = further_bits(addend.participants)
    if addend.clear is not None:
        encode_tensor(addend.clear, blobs, into=message.clear)
    if addend.masked is not None:
        encode_tensor(addend.masked, blobs, into=message.masked)
    for root in addend.roots:
        message.roots.append(_tree_sum(root, blobs))
    return message


def _tree_sum(part: TreeSum, blobs: Blobs) -> sums_pb.MaskedTheta:
    return sums_pb.MaskedTheta(
        tree=_TREES[part.tree],
        round=part.round,
        elements=encode_tensor(part.elements, blobs),
        participants=part.participants,
    )


def encode_tree_sum(release: Release[TreeSum], blobs: Blobs) -> sums_pb.MaskedTheta:
    """A partial sum on its way up a tree."""
    return _tree_sum(release.content, blobs)


def decode_tree_sum(message: sums_pb.MaskedTheta, blobs: Blobs) -> TreeSum:
    """A partial sum from a tree."""
    elements = decode_tensor(message.elements, blobs, name="masked_theta.elements", kinds="u", ndim=1)
    return TreeSum(named(_TREES, message.tree), message.round, elements, message.participants)


def decode_addend(message: sums_pb.Addend, blobs: Blobs) -> Addend:
    """A party's part of a sum."""
    clear = masked = None
    if message.HasField("clear"):
        clear = decode_tensor(message.clear, blobs, name="addend.clear", ndim=1)
    if message.HasField("masked"):
        masked = decode_tensor(message.masked, blobs, name="addend.masked", kinds="u", ndim=1)
    participants = party_bits(message.participants, message.further_participants)
    if clear is not None or masked is not None:
        return Addend(participants, clear, masked)
    return Addend(participants, roots=tuple(decode_tree_sum(root, blobs) for root in message.roots))


def enum_codes(kind: EnumDescriptor) -> dict[Any, Any]:
    """The values of a proto enum by the names that roles use: `PHASE_EVALUATE` of `Phase` is `evaluate`."""
    values = kind.values
    prefix = values[0].name.removesuffix("UNSPECIFIED")
    return {value.name.removeprefix(prefix).lower(): value.number for value in values if value.number}


def named(table: Mapping[Name, int], code: int) -> Name:
    """The name of an enum value; an unknown one is refused."""
    for name, known in table.items():
        if known == code:
            return name
    raise MessageInvalid(f"enum value {code} is unknown here")
