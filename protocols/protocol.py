"""What crosses in an algorithm, as both roles and an auditor see it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from parley.privacy.manifest import Entry
from parley.privacy.recovery import RecoveryStep
from parley.protocols.statements import Statement
from parley.protocols.tensor.codec import Blobs
from parley.spec.algorithms import Algorithm, AlgorithmSettings
from parley.spec.run import RunSpec

EXTENSION = "extension"
"""The field of the envelopes for algorithms of other distributions."""

SettledSum = tuple[str, int, int]
"""A sum that was opened without a lost party: phase, round, and bitmap of the parties whose addends it holds."""


@dataclass(frozen=True)
class RecoveryCodec:
    """How sums that go on without a lost party look on the wire of an algorithm."""

    phases: Sequence[str]
    """The phases of a round, in their order."""
    encode_settled: Callable[[Iterable[SettledSum]], Sequence[Message]]
    decode_settled: Callable[[Iterable[Any]], Iterable[SettledSum]]
    decode_step: Callable[[Any, RecoveryStep, int], Any]
    """A party's answer to a step of a sum that asks for no value, checked."""


@dataclass(frozen=True)
class CrossingProtocol:
    """Everything that leaves a party or the coordinator in one algorithm."""

    name: str
    settings: type[AlgorithmSettings]
    """The `train` section."""
    instruction: type[Message]
    """From the coordinator to a party; its field `round` numbers the rounds of a session."""
    contribution: type[Message]
    """A party's answer, with the number of the round that it answers."""
    decode_instruction: Callable[[Any, Blobs], Any]
    """Checks an instruction before a role sees it."""
    crossings: tuple[Entry, ...]
    """One entry of the manifest for each field of the algorithm's own messages."""
    statements: Callable[[RunSpec], Iterable[Statement]] | None = None
    """What leaves in one run, in sentences; each entry of `crossings` says it for itself if there are none."""
    body: str = EXTENSION
    """The field of the envelopes that holds its messages."""
    peer_messages: tuple[type[Message], ...] = ()
    """What parties send to each other."""
    recovery: RecoveryCodec | None = None
    """For algorithms whose sums can go on without a lost party."""


def protocol_of(algorithm: Algorithm) -> CrossingProtocol:
    """The protocol that a registered algorithm names."""
    found: CrossingProtocol = algorithm.load("protocol")
    return found
