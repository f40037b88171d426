"""What a caller gets for an error: a catalogue of status and reason, free of any transport."""

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
    """What a caller gets for an error."""

    status: Status
    reason: str
    """The machine-readable name."""
    public: str | None = None
    """A sentence for the caller, where the error's own text holds something private."""


Catalogue = Mapping[type[Exception], Refusal]
