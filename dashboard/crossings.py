"""Which fields of the manifest leave an organisation in one run."""

from collections.abc import Sequence

from parley.dashboard.views import CrossingView
from parley.privacy.manifest import PUBLIC, Entry
from parley.protocols.manifest import manifest_of
from parley.spec.parsing import parse_spec
from parley.spec.protection import AggregationSpec

_ADDENDS = {"plain": "clear", "pairwise": "masked", "two_tree": "roots"}
"""The field of an addend that each way of summing uses."""
_OF_RECOVERY = frozenset({"SealedShares", "DisclosedShare"})
_OF_ALIGNMENT = frozenset({"AlignResponse", "AlignedTable"})
_CARRIERS = frozenset({"tensor", "extension"})
"""Packages whose messages are listed where they are carried."""


def crossings(spec_yaml: str) -> Sequence[CrossingView]:
    """What leaves in a run of this spec, control fields left out."""
    spec = parse_spec(spec_yaml)
    return [
        CrossingView(entry.field.removeprefix("parley."), entry.derived_from, entry.protection, entry.seen_by)
        for entry in manifest_of(spec.train.algorithm)
        if entry.derived_from != PUBLIC and _leaves(entry, spec.privacy.aggregation)
    ]


def _leaves(entry: Entry, aggregation: AggregationSpec) -> bool:
    *_, owner, _, message, field = entry.field.split(".")
    if owner in _CARRIERS or owner == "alignment" or message in _OF_ALIGNMENT:
        return False
    if message in _OF_RECOVERY:
        return aggregation.recovery
    if message == "Addend":
        return field == _ADDENDS[aggregation.kind]
    return aggregation.kind == "two_tree" or message not in ("MaskedTheta", "PushRequest")
