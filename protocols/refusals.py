"""How an error is told to a caller: a catalogue of status and reason, free of any transport."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Status = Literal[
    "INVALID_ARGUMENT",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "UNAUTHENTICATED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "UNAVAILABLE",
    "DATA_LOSS",
    "INTERNAL",
]
"""gRPC's status codes, by name."""


@dataclass(frozen=True)
class Refusal:
    """How an error is told to the caller."""

    status: Status
    reason: str
    """The machine-readable name."""
    public: str | None = None
    """What the caller is told where the error's own text holds something private."""


Catalogue = Mapping[type[Exception], Refusal]
