"""Which fields of the manifest leave an organisation in one run."""

from collections.abc import Sequence

from parley.dashboard.views import CrossingView
from parley.privacy.manifest import MANIFEST, Entry
from parley.spec.parsing import parse_spec

_ALGORITHMS = frozenset({"bambi", "fedbio", "asysqn", "decentralised"})
_PACKAGES = {"hgp": "decentralised", "ldp_dsbo": "decentralised"}
_VECTORS = {"PushSumVector": "hgp", "NoisedState": "ldp_dsbo", "Measures": "hgp"}
"""Messages of `decentralised` that belong to one algorithm."""
_ADDENDS = {"plain": "clear", "pairwise": "masked", "two_tree": "roots"}
"""The field of an addend that each way of summing uses."""


def crossings(spec_yaml: str) -> Sequence[CrossingView]:
    """What leaves in a run of this spec, control fields left out."""
    spec = parse_spec(spec_yaml)
    algorithm = spec.train.algorithm
    package = _PACKAGES.get(algorithm, algorithm)
    summed = _ADDENDS[spec.privacy.aggregation.kind]
    recovers = spec.privacy.aggregation.recovery
    return [
        CrossingView(entry.field.removeprefix("parley."), entry.derived_from, entry.protection, entry.seen_by)
        for entry in MANIFEST
        if _leaves(entry, package, summed) and not _is_anothers(entry, algorithm) and not _is_of_alignment(entry)
        if recovers or not _is_of_recovery(entry)
    ]


def _is_of_recovery(entry: Entry) -> bool:
    """Whether a field crosses only in sums that go on without a lost party."""
    return entry.field.split(".")[3] in ("SealedShares", "DisclosedShare")


def _is_of_alignment(entry: Entry) -> bool:
    """Whether a field crosses before the run, when its rows are aligned."""
    _, owner, _, message, _ = entry.field.split(".")
    return owner == "alignment" or message in ("AlignResponse", "AlignedTable")


def _is_anothers(entry: Entry, algorithm: str) -> bool:
    _, owner, _, message, _ = entry.field.split(".")
    return owner == "decentralised" and _VECTORS.get(message, algorithm) != algorithm


def _leaves(entry: Entry, package: str, summed: str) -> bool:
    _, owner, _, message, field = entry.field.split(".")
    if entry.derived_from == "nothing private" or (owner in _ALGORITHMS and owner != package) or owner == "tensor":
        return False
    if message == "Addend":
        return field == summed
    if message in ("MaskedTheta", "PushRequest"):
        return summed == "roots"
    return message != "SlopesQuestion" or package == "asysqn"
