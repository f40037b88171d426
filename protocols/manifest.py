"""The whole manifest: what every algorithm shares, and what each installed one adds."""

from parley.privacy.manifest import MANIFEST, Entry
from parley.protocols.protocol import protocol_of
from parley.spec.algorithms import algorithm_named, installed


def whole_manifest() -> tuple[Entry, ...]:
    """One entry for each field that can leave, in any algorithm that is installed here."""
    own = (entry for algorithm in installed().values() for entry in protocol_of(algorithm).crossings)
    return tuple(dict.fromkeys([*MANIFEST, *own]))  # algorithms may share messages


def manifest_of(name: str) -> tuple[Entry, ...]:
    """One entry for each field that can leave in runs of one algorithm."""
    return (*MANIFEST, *protocol_of(algorithm_named(name)).crossings)
