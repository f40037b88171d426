"""Specs that wait for a person's yes, and those that have it: files in the party's state directory.

A party whose policy says `approval: required` takes a spec only once its owner has approved it by its digest
(`parley approve`). What was asked for is kept, so that the owner reads the spec that the party was given.
"""

import json
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path

FOLDER = "approvals"
MOST_WAITING = 200
"""Specs that may wait at once: a coordinator cannot fill the disk by asking."""
_DIGEST = re.compile(r"[0-9a-f]{64}")


class ApprovalMissing(PermissionError):
    """The party's owner has not approved the spec."""


class DigestUnknown(LookupError):
    """No spec with this digest was asked for."""


@dataclass(frozen=True)
class AskedSpec:
    """A spec that a coordinator came with."""

    digest: str
    coordinator: str
    asked: float
    """When it came first, in Unix seconds."""
    spec_yaml: str
    approved: bool


class Approvals:
    """A party's approvals. A file that ends in `.asked` holds a spec; one that ends in `.approved` is the yes."""

    def __init__(self, state: Path) -> None:
        self._folder = state / FOLDER

    def require(self, why: str, digest: str, spec_yaml: str, coordinator: str) -> None:
        """Let an approved spec pass; keep another one for the owner to read, and say why that is needed.

        Raises:
            ApprovalMissing: with the digest, and what the owner has to do.
        """
        if self._path(digest, "approved").exists():
            return
        asked = self._path(digest, "asked")
        if not asked.exists() and len(list(self._folder.glob("*.asked"))) < MOST_WAITING:
            entry = {"coordinator": coordinator, "asked": time.time(), "spec_yaml": spec_yaml}
            self._write(asked, json.dumps(entry))
        raise ApprovalMissing(f"{why}: there, `parley approve {digest} --config party.yaml`, then ask again")

    def approve(self, digest: str) -> AskedSpec:
        """Say yes to a spec that was asked for."""
        found = self._known(digest)
        self._write(self._path(digest, "approved"), json.dumps({"approved": time.time()}))
        return found

    def revoke(self, digest: str) -> AskedSpec:
        """Take a yes back: sessions that are open go on, no other one begins."""
        found = self._known(digest)
        self._path(digest, "approved").unlink(missing_ok=True)
        return found

    def asked(self) -> list[AskedSpec]:
        """Every spec that was asked for, oldest first."""
        found = [self._known(path.stem) for path in self._folder.glob("*.asked")]
        return sorted(found, key=lambda asked: asked.asked)

    def _known(self, digest: str) -> AskedSpec:
        path = self._path(digest, "asked") if _DIGEST.fullmatch(digest) else None
        if path is None or not path.exists():
            raise DigestUnknown(f"no coordinator has come with a spec of digest {digest}: see `parley approve --list`")
        entry = json.loads(path.read_text("utf-8"))
        approved = self._path(digest, "approved").exists()
        return AskedSpec(digest, entry["coordinator"], entry["asked"], entry["spec_yaml"], approved)

    def _path(self, digest: str, kind: str) -> Path:
        return self._folder / f"{digest}.{kind}"

    def _write(self, path: Path, content: str) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        scratch = path.with_suffix(".partial")
        with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
