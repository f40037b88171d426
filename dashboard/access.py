"""Who may see the page: whoever shows the token, as a bearer or once for a cookie.

The cookie is an expiry time and a MAC under a key derived from the token: nothing is stored, a restart of the
coordinator logs nobody out, and a new token logs everybody out.
"""

import hashlib
import hmac
import os
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection, Request

SESSION_SECONDS = 12 * 3600
CSRF_HEADER = "x-parley"
SHORTEST_TOKEN = 20


class TokenInvalid(ValueError):
    """The token file cannot be used."""


def read_or_create_token(path: Path) -> str:
    """The token in a file; made with mode 0600 if there is none.

    Raises:
        TokenInvalid: if the token is short, or others than the owner may read it.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        token = path.read_text().strip()
        if path.stat().st_mode & 0o077:
            raise TokenInvalid(f"others may read {path}: chmod 600 {path}") from None
        if len(token) < SHORTEST_TOKEN:
            raise TokenInvalid(
                f"{path} holds fewer than {SHORTEST_TOKEN} characters: remove it and a new one is made"
            ) from None
        return token
    token = secrets.token_urlsafe(32)
    with os.fdopen(descriptor, "w") as file:
        file.write(token + "\n")
    return token


@dataclass(frozen=True)
class Access:
    """Checks requests against the token."""

    token: str
    secure: bool
    """Whether the page is served over TLS."""

    @property
    def cookie(self) -> str:
        """The cookie's name; the prefix makes browsers insist on TLS and on this very host."""
        return "__Host-parley" if self.secure else "parley"

    def opens(self, token: str) -> bool:
        """Whether this is the token."""
        return hmac.compare_digest(token.strip().encode(), self.token.encode())

    def make_cookie(self) -> str:
        """A fresh session."""
        expiry = str(int(time.time()) + SESSION_SECONDS)
        return f"{expiry}.{self._seal(expiry)}"

    def admits(self, request: HTTPConnection) -> bool:
        """Whether a request shows the token or a session that lasts."""
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.opens(bearer):
            return True
        expiry, _, seal = request.cookies.get(self.cookie, "").partition(".")
        genuine = hmac.compare_digest(seal.encode(), self._seal(expiry).encode())
        return genuine and expiry.isdigit() and int(expiry) > time.time()

    def _seal(self, expiry: str) -> str:
        key = hashlib.sha256(b"parley web session\0" + self.token.encode()).digest()
        return hmac.new(key, expiry.encode(), hashlib.sha256).hexdigest()


def is_same_origin(request: Request) -> bool:
    """Whether a request comes from this page itself, as far as the browser says where it comes from."""
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = request.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == request.headers.get("host")
