"""Who did what, when and from where: an append-only file of JSON lines, each of which seals the one before it.

A call is written down before it is done, and once more if it is refused: what cannot be written down is not done. A
line that was changed, or taken out of the middle, breaks the chain of digests; whoever keeps the newest digest apart
also sees that lines were cut off at the end. Lines hold names, ids and digests of specs; no value of anybody's records.
"""

import hashlib
import json
import logging
import os
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from parley.storage.failures import StorageFailed

FILE = "audit.jsonl"
START = "0" * 64
"""What the first line seals."""
ADMITTED = "admitted"
NEWEST = 200
"""Lines that are kept at hand."""
QUIET = frozenset(
    {
        "CheckSpec",
        "GetRun",
        "ListRuns",
        "WatchRun",
        "ListParties",
        "ListDeployments",
        "Describe",
        "Announce",
        "Accept",
        "Connect",
    }
)
"""Methods that only look, or are made all the time: written down when they are refused."""
QUIET_SERVICES = ("grpc.health.", "grpc.reflection.")
logger = logging.getLogger(__name__)
_IN_ORDER = json.JSONEncoder(sort_keys=True)
_NAMED = ("run_id", "session_id", "request_id", "name", "deployment", "table")
_LONGEST = 200


class AuditBroken(ValueError):
    """A line of the trail is not what was written."""


@dataclass(frozen=True)
class AuditEntry:
    """One line of the trail."""

    sequence: int
    time: str
    role: str
    """Of whoever asked: `client`, `party`, `coordinator`; on the page `web`, `token` or `user`."""
    name: str
    """As its certificate says; of a token or a user; `page` for whoever has the page's own token."""
    address: str
    """Where it was asked from; `relay` for what came through one."""
    action: str
    """The method, or the page's path."""
    subject: str
    """Ids in the request, and the digest of a spec in it."""
    outcome: str
    """`admitted`, or the named reason of a refusal."""
    previous: str
    digest: str = ""

    def sealed(self) -> str:
        """The digest of all other fields."""
        return _sealed({name: value for name, value in asdict(self).items() if name != "digest"})


def _sealed(fields: Mapping[str, Any]) -> str:
    return hashlib.sha256(_IN_ORDER.encode(fields).encode()).hexdigest()


class AuditTrail:
    """Appends to the trail in a state directory; one process at a time."""

    def __init__(self, directory: Path) -> None:
        """Raises AuditBroken if the trail that is there was changed."""
        self._path = directory / FILE
        self._sequence, self._previous = 0, START
        _drop_half_line(self._path)
        self.newest: deque[AuditEntry] = deque(maxlen=NEWEST)
        """The last lines, oldest first."""
        for entry in read_trail(directory):
            self._sequence, self._previous = entry.sequence, entry.digest
            self.newest.append(entry)
        self._turn = threading.Lock()

    def note(self, role: str, name: str, address: str, action: str, subject: str, outcome: str = ADMITTED) -> None:
        """Write a line down.

        Raises:
            StorageFailed: if that is impossible; the trail stays as it was.
        """
        with self._turn:
            moment = datetime.now(UTC).isoformat(timespec="milliseconds")
            fields: dict[str, Any] = {  # of every prediction too: a dataclass that is taken apart takes longer
                "sequence": self._sequence + 1,
                "time": moment,
                "role": role,
                "name": name,
                "address": address,
                "action": action[:_LONGEST],
                "subject": subject[:_LONGEST],
                "outcome": outcome,
                "previous": self._previous,
            }
            encoded = _IN_ORDER.encode(fields)
            fields["digest"] = hashlib.sha256(encoded.encode()).hexdigest()
            line = f'{encoded[:-1]}, "digest": "{fields["digest"]}"}}\n'.encode()
            try:
                self._append(line)
            except OSError as error:
                raise StorageFailed(f"the audit trail {self._path} cannot be written ({error.strerror})") from None
            self._sequence, self._previous = fields["sequence"], fields["digest"]
            self.newest.append(AuditEntry(**fields))

    def _append(self, line: bytes) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            try:
                if os.write(descriptor, line) != len(line):
                    raise OSError(0, "the disk is full")
            except OSError:
                os.ftruncate(descriptor, size)
                raise
        finally:
            os.close(descriptor)


def _drop_half_line(path: Path) -> None:
    """Take away what a host that lost its power left of a line: it was never answered."""
    if not path.exists():
        return
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        logger.warning("%s ends with half a line, which is dropped", path)
        os.truncate(path, whole)


def read_trail(directory: Path) -> Iterator[AuditEntry]:
    """Every line of the trail in a state directory, checked.

    Raises:
        AuditBroken: at the first line that is not the one that was written.
    """
    path = directory / FILE
    if not path.exists():
        return
    previous = START
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith("\n"):
                return  # it is being written, or its host lost its power
            try:
                entry = AuditEntry(**json.loads(line))
            except (ValueError, TypeError):
                raise AuditBroken(f"{path}:{number} is no line of an audit trail: restore it from a backup") from None
            if (entry.sequence, entry.previous, entry.digest) != (number, previous, entry.sealed()):
                raise AuditBroken(f"{path}:{number} was changed, or a line before it taken out: restore a backup")
            previous = entry.digest
            yield entry


def is_quiet(method: str) -> bool:
    """Whether a method is written down only when it is refused."""
    service, _, name = method.strip("/").rpartition("/")
    return name in QUIET or service.startswith(QUIET_SERVICES)


def subject_of(request: Any) -> str:
    """What a request is about: ids in it, and the digest of its spec; nothing of a stream, which is read later."""
    found = [
        f"{field} {value}" for field in _NAMED if isinstance(value := getattr(request, field, None), str) and value
    ]
    spec = getattr(request, "spec_yaml", None)
    if isinstance(spec, str) and spec:
        found.append(f"spec sha256 {hashlib.sha256(spec.encode()).hexdigest()[:16]}")
    return ", ".join(found)


def origin(peer: str) -> str:
    """A gRPC peer as an address: of a unix socket, `relay`, since nobody else dials it."""
    return "relay" if peer.startswith("unix") else peer.partition(":")[2]
