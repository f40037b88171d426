"""A party's own record of its sessions: who agreed to what, what it released, and everybody's receipts. One file a run.

Lines are JSON. `begin` holds what the consent of a session that trains is made of, `receipts` everybody's signed word
at a checkpoint or at the end, `end` this party's own word when a session closed, of a prediction too. The party's owner
reads it with `parley transcript`; nobody else gets it.
"""

import base64
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from google.protobuf.message import Message

from parley.privacy.consent import Member
from parley.privacy.receipts import (
    LedgerHead,
    Receipt,
    ReceiptInvalid,
    ReleaseDigest,
    TranscriptDiffers,
    check_receipts,
    signed,
    verify,
)
from parley.privacy.transcript import Heads, digest_of
from parley.protocols.tensor.codec import Blobs
from parley.services.party.checkpoints import naming_failures

FOLDER = "transcripts"


@dataclass(frozen=True)
class Record:
    """Where a party's word goes, and what signs it."""

    state: Path
    """The party's state directory."""
    key_pem: bytes = field(repr=False)
    """The private key of the party's certificate."""


class TranscriptFile:
    """The record of one run."""

    def __init__(self, state: Path, run_id: str) -> None:
        self.path = state / FOLDER / f"{run_id}.jsonl"

    def append(self, kind: str, **fields: Any) -> None:
        """Write a line and sync it."""
        entry = {"kind": kind, "time": datetime.now(UTC).isoformat(timespec="seconds"), **fields}
        with naming_failures(self.path):
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(handle, "a", encoding="utf-8") as file:
                file.write(f"\n{json.dumps(entry)}\n")  # a new line first: what a crash left of the last stays apart
                file.flush()
                os.fsync(file.fileno())

    def entries(self) -> Iterator[dict[str, Any]]:
        """Every line, oldest first; a torn last one of a crash is left out."""
        for line in self.path.read_text("utf-8").splitlines():
            if line.endswith("}"):
                yield json.loads(line)


@dataclass
class Witness:
    """One party's receipts in one session."""

    index: int
    members: Sequence[Member]
    certificates: Sequence[bytes]
    """Of the members, PEM; verified when the session began."""
    consent: bytes
    key_pem: bytes = field(repr=False)
    """The private key of this party's certificate."""
    file: TranscriptFile
    may_miss: bool = False
    """Whether parties may be lost, so that their receipts do not come."""
    released: ReleaseDigest = field(default_factory=ReleaseDigest)
    last: Receipt | None = None
    """The newest receipt of this party."""
    _due: Receipt | None = None
    """The receipt whose counterparts have not come yet."""

    def begin(self, **fields: Any) -> None:
        """Write down what was agreed to."""
        members = [
            {
                "name": member.name,
                "public_key": member.public_key.hex(),
                "nonce": member.agreement.nonce.hex(),
                "spec": member.agreement.spec_digest.hex(),
                "certificate": certificate.decode(),
            }
            for member, certificate in zip(self.members, self.certificates, strict=True)
        ]
        self.file.append("begin", party=self.index, consent=self.consent.hex(), members=members, **fields)

    def note(self, number: int, answer: Message, blobs: Blobs) -> None:
        """Count an answer among what this party has released."""
        self.released.add(number, digest_of(answer.SerializeToString(deterministic=True), blobs))

    def receipt(self, number: int, heads: Heads, ledger: LedgerHead) -> Receipt:
        """This party's word at a checkpoint or at the end; everybody else's is due before the next round."""
        self.last = self._due = signed(self._word(number, heads, ledger), self.key_pem)
        return self.last

    def take(self, receipts: Sequence[Receipt]) -> None:
        """Compare everybody's receipts with this party's own, and keep them.

        Raises:
            TranscriptDiffers: if they do not agree, or somebody's is missing who must not be.
        """
        own = self._due
        if own is None or not receipts:
            return
        others = {receipt.party: receipt for receipt in receipts if receipt.party != self.index}
        for party, receipt in others.items():
            if party >= len(self.members) or receipt.name != self.members[party].name:
                raise ReceiptInvalid(f"there is no party {party} with the name {receipt.name!r} in this session")
            verify(receipt, self.certificates[party])
        missing = [member.name for place, member in enumerate(self.members) if place not in (self.index, *others)]
        if missing and not self.may_miss:
            raise TranscriptDiffers(f"the receipts of {', '.join(missing)} for round {own.round} are missing")
        check_receipts(own, list(others.values()))
        self._due = None
        self.file.append("receipts", round=own.round, receipts=[as_json(each) for each in (own, *others.values())])

    def check_due(self) -> None:
        """Refuse to go on while others' receipts are kept back."""
        if self._due is not None:
            raise TranscriptDiffers(
                f"the coordinator has not shown the other parties' receipts for round {self._due.round}: nothing more "
                "leaves in this session"
            )

    def end(self, number: int, heads: Heads, **fields: Any) -> None:
        """Write down, signed, all that left in the session."""
        ledger = self.last.ledger if self.last is not None else LedgerHead()
        self.file.append("end", receipt=as_json(signed(self._word(number, heads, ledger), self.key_pem)), **fields)

    def _word(self, number: int, heads: Heads, ledger: LedgerHead) -> Receipt:
        name, released = self.members[self.index].name, self.released
        return Receipt(self.index, name, number, self.consent, heads, released.head, released.count, ledger)


def as_json(receipt: Receipt) -> dict[str, Any]:
    """A receipt for the record."""
    return {
        "party": receipt.party,
        "name": receipt.name,
        "round": receipt.round,
        "consent": receipt.consent.hex(),
        "heads": {str(other): head.hex() for other, head in receipt.heads.items()},
        "released": receipt.released.hex(),
        "releases": receipt.releases,
        "ledger_entries": receipt.ledger.entries,
        "ledger_head": receipt.ledger.head.hex(),
        "signature": base64.b64encode(receipt.signature).decode(),
    }


def from_json(entry: Mapping[str, Any]) -> Receipt:
    """A receipt from the record."""
    return Receipt(
        entry["party"],
        entry["name"],
        entry["round"],
        bytes.fromhex(entry["consent"]),
        {int(other): bytes.fromhex(head) for other, head in entry["heads"].items()},
        bytes.fromhex(entry["released"]),
        entry["releases"],
        LedgerHead(entry["ledger_entries"], bytes.fromhex(entry["ledger_head"])),
        base64.b64decode(entry["signature"]),
    )


@dataclass(frozen=True)
class Checked:
    """What a record shows once its signatures are verified."""

    sessions: int
    rounds: int
    """Rounds up to the last receipts, over all sessions."""
    releases: int
    """Answers that left, over all sessions."""
    witnessed: int
    """Checkpoints at which everybody's receipts agreed."""
    ledger: LedgerHead
    """The newest head of the coordinator's label ledger that parties have signed."""


def check_record(file: TranscriptFile) -> Checked:
    """Verify every signature of a record, and that receipts of one checkpoint agree.

    Raises:
        TranscriptDiffers: with the first line that does not fit.
    """
    certificates: list[bytes] = []
    sessions = rounds = releases = witnessed = 0
    newest = LedgerHead()
    for entry in file.entries():
        match entry["kind"]:
            case "begin":
                certificates = [member["certificate"].encode() for member in entry["members"]]
                sessions += 1
            case "receipts" | "end":
                found = [from_json(each) for each in entry.get("receipts", [entry.get("receipt")])]
                for receipt in found:
                    verify(receipt, certificates[receipt.party])
                check_receipts(found[0], found[1:])
                witnessed += entry["kind"] == "receipts"
                newest = max(newest, found[0].ledger, key=lambda head: head.entries)
                if entry["kind"] == "end":
                    rounds, releases = rounds + found[0].round, releases + found[0].releases
    return Checked(sessions, rounds, releases, witnessed, newest)
