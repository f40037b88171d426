"""What every party of a session has agreed to, bound to its masks.

A coordinator hands each party the run's spec, and could hand each another one. So a party says what it was told in a
statement that its signature of the session key covers, every party sees every statement before anything leaves, and the
secrets of the session are derived from all of it: purpose, protocol, spec, participants, keys, nonces, sizes and where
to begin. Whoever was told something else is named; whoever gets past that has masks that do not
cancel.
"""

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from parley.privacy.session_keys import joined

NONCE_BYTES = 32
_LABEL = b"parley/consent/v1"
Purpose = Literal["train", "predict", "serve"]


class ConsentDiffers(ValueError):
    """Another party was told something else about the session."""


@dataclass(frozen=True)
class Agreement:
    """What a party was told when a session opened, and its share of the session's salt."""

    purpose: Purpose
    spec_digest: bytes
    """SHA-256 of the spec as it was read (`parley.spec.digests`)."""
    nonce: bytes
    """Drawn for this session."""
    rows: int = 0
    """Rows that it takes part with, where rows are common; else 0."""
    id_digest: bytes = b""
    """SHA-256 over the ids of these rows, and over the table that it was told to predict on, if it was told one; empty
    where rows are not common."""
    upper_size: int = 0
    """Upper parameters of its block."""
    protocol: int = 0
    """The version of the protocol that the session is held in; 0 in one whose parties do not sign it."""

    @property
    def content(self) -> bytes:
        """The bytes that are signed."""
        parts = [
            self.purpose.encode(),
            self.spec_digest,
            self.nonce,
            b"%d" % self.rows,
            self.id_digest,
            b"%d" % self.upper_size,
        ]
        return joined(*parts, *([b"%d" % self.protocol] if self.protocol else []))


def fresh_nonce() -> bytes:
    """A party's share of a session's salt, from the operating system's randomness."""
    return os.urandom(NONCE_BYTES)


@dataclass(frozen=True)
class Member:
    """A party of a session: its name, its key, and what it signed."""

    name: str
    public_key: bytes
    agreement: Agreement


@dataclass(frozen=True)
class Beginning:
    """What a coordinator says when a session begins."""

    run_id: str
    session_id: str
    outputs: int
    checkpoint: int
    """The checkpoint that the run goes on from."""
    settled: bytes = b""
    """What parties said of earlier sums, serialised."""


def check_agreements(own: Agreement, members: Sequence[Member], upper_sizes: Sequence[int]) -> None:
    """Refuse a session whose parties were told different things.

    Raises:
        ConsentDiffers: with who was told something else, and about what.
    """
    for member, size in zip(members, upper_sizes, strict=True):
        other = member.agreement
        pairs = {
            "purpose": (other.purpose, own.purpose),
            "protocol": (other.protocol, own.protocol),
            "spec": (other.spec_digest, own.spec_digest),
            "number of rows": (other.rows, own.rows),
            "rows": (other.id_digest, own.id_digest),
            "size of its block": (other.upper_size, size),
        }
        told = [what for what, (theirs, ours) in pairs.items() if theirs != ours]
        if len(other.nonce) != NONCE_BYTES:
            told = ["nonce"]
        if told:
            raise ConsentDiffers(
                f"{member.name} was told, or says, another {told[0]} for this session than this party: nothing was "
                "sent; ask the coordinator's operator, and compare specs by their digests"
            )


def consent_of(beginning: Beginning, members: Sequence[Member]) -> bytes:
    """32 bytes that two parties share only if they were told the same of the whole session."""
    own = members[0].agreement
    parts = [
        _LABEL,
        beginning.run_id.encode(),
        beginning.session_id.encode(),
        own.purpose.encode(),
        own.spec_digest,
        b"%d %d" % (beginning.outputs, beginning.checkpoint),
        beginning.settled,
    ]
    for member in members:
        parts += [member.name.encode(), member.public_key, member.agreement.content]
    return hashlib.sha256(joined(*parts)).digest()
