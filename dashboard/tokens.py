"""Named tokens of programs and people: each has scopes, may expire, and can be taken back while the coordinator runs.

The file holds SHA-256 digests. A token is 256 random bits, so that a slow hash would protect nothing further.
"""

import contextlib
import fcntl
import hashlib
import hmac
import json
import os
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

FILE = "web-tokens.json"
PREFIX = "parley_"
"""So that scanners of source code can tell what they have found."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")


class TokenRefused(ValueError):
    """A token cannot be made, found or read."""


@dataclass(frozen=True)
class NamedToken:
    """What is kept of a token."""

    name: str
    digest: str
    """SHA-256 of the token, hexadecimal."""
    permissions: tuple[str, ...]
    created: float
    """Seconds since the epoch."""
    expires: float | None
    """The same; None for a token that stands until it is revoked."""

    @property
    def mark(self) -> str:
        """Tells it from another token of the same name."""
        return self.digest[:16]

    def stands(self, now: float) -> bool:
        """Whether it has not expired."""
        return self.expires is None or now < self.expires


class TokenFile:
    """The tokens of one coordinator; read again whenever the file has changed."""

    def __init__(self, state: Path) -> None:
        self._path = state / FILE
        self._stamp: tuple[int, int, int] | None = None
        self._found: tuple[NamedToken, ...] = ()

    def all(self) -> tuple[NamedToken, ...]:
        """Every token, expired ones too.

        Raises:
            TokenRefused: if the file is damaged.
        """
        try:
            status = self._path.stat()
        except FileNotFoundError:
            self._stamp, self._found = None, ()
            return ()
        stamp = (status.st_mtime_ns, status.st_ino, status.st_size)
        if stamp != self._stamp:
            self._found = self._read()
            self._stamp = stamp
        return self._found

    def named(self, name: str, mark: str) -> NamedToken | None:
        """The token of a session, if it stands."""
        return next((t for t in self.all() if (t.name, t.mark) == (name, mark) and t.stands(time.time())), None)

    def shown(self, token: str) -> NamedToken | None:
        """The token that somebody shows, if it is one and stands."""
        digest = _digest(token)
        found = [each for each in self.all() if hmac.compare_digest(each.digest, digest)]
        return found[0] if found and found[0].stands(time.time()) else None

    def create(self, name: str, permissions: Sequence[str], days: float | None = None) -> str:
        """Make a token; it is told here and nowhere else.

        Raises:
            TokenRefused: if the name is taken or unusable, or nothing is permitted.
        """
        if not _NAME.fullmatch(name):
            raise TokenRefused(
                f"{name!r} is no name of a token: take letters, digits, `.`, `_`, `@` and `-`, 64 at most"
            )
        if not permissions:
            raise TokenRefused("a token without permissions may do nothing: name one or more")
        token, now = PREFIX + secrets.token_urlsafe(32), time.time()
        expires = None if days is None else now + days * 86400
        made = NamedToken(name, _digest(token), tuple(dict.fromkeys(permissions)), now, expires)
        with self._changing() as tokens:
            if any(each.name == name for each in tokens):
                raise TokenRefused(f"there is a token {name}: revoke it first, or choose another name")
            tokens.append(made)
        return token

    def revoke(self, name: str) -> None:
        """Take a token back.

        Raises:
            TokenRefused: if there is none of this name.
        """
        with self._changing() as tokens:
            kept = [each for each in tokens if each.name != name]
            if len(kept) == len(tokens):
                known = ", ".join(each.name for each in tokens) or "there are none"
                raise TokenRefused(f"there is no token {name}; known tokens: {known}")
            tokens[:] = kept

    @contextlib.contextmanager
    def _changing(self) -> Iterator[list[NamedToken]]:
        """The tokens, to be changed by one process at a time; written if nothing is raised."""
        held = self._path.parent / f"{FILE}.lock"
        held.touch(0o600)
        with held.open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            tokens = list(self.all())
            yield tokens
            new = self._path.with_suffix(".partial")
            new.unlink(missing_ok=True)
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                json.dump([asdict(each) for each in tokens], file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            new.replace(self._path)

    def _read(self) -> tuple[NamedToken, ...]:
        try:
            lines = json.loads(self._path.read_text())
            return tuple(NamedToken(**line | {"permissions": tuple(line["permissions"])}) for line in lines)
        except (ValueError, TypeError, KeyError):
            raise TokenRefused(
                f"{self._path} is damaged: restore it from a backup, or remove it and make new tokens"
            ) from None


def _digest(token: str) -> str:
    return hashlib.sha256(token.strip().encode()).hexdigest()
