"""The whole manifest: what every algorithm shares, and what each installed one adds."""

from parley.privacy.manifest import MANIFEST, PUBLIC, Entry
from parley.protocols.protocol import CrossingProtocol, protocol_of
from parley.protocols.statements import PARTIES, Statement, common_statements
from parley.spec.algorithms import algorithm_named, installed
from parley.spec.run import RunSpec


def whole_manifest() -> tuple[Entry, ...]:
    """One entry for each field that can leave, in any algorithm that is installed here."""
    own = (entry for algorithm in installed().values() for entry in protocol_of(algorithm).crossings)
    return tuple(dict.fromkeys([*MANIFEST, *own]))  # algorithms may share messages


def manifest_of(name: str) -> tuple[Entry, ...]:
    """One entry for each field that can leave in runs of one algorithm."""
    return (*MANIFEST, *protocol_of(algorithm_named(name)).crossings)


def statements_of(spec: RunSpec) -> tuple[Statement, ...]:
    """What leaves in one run, in sentences: what its algorithm sends, and what every run does."""
    protocol = protocol_of(algorithm_named(spec.train.algorithm))
    own = _entry_by_entry(protocol) if protocol.statements is None else tuple(protocol.statements(spec))
    return (*own, *common_statements(spec))


def _entry_by_entry(protocol: CrossingProtocol) -> tuple[Statement, ...]:
    """For an algorithm that has no sentences of its own."""
    derived = [entry for entry in protocol.crossings if entry.derived_from != PUBLIC]
    return tuple(
        Statement(
            PARTIES,
            f"something made from {entry.derived_from}; protection: {entry.protection}; seen by {entry.seen_by}",
            (entry.field.removeprefix("parley."),),
        )
        for entry in derived
    )
