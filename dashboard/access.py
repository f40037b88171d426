"""Who may see the page: whoever shows the page's token or a named one, and users of an OpenID Connect provider.

A token is shown as a bearer, or once for a cookie. The cookie says who logged in and until when, under a MAC whose key
is derived from the page's token: nothing is stored, a restart of the coordinator logs nobody out, and a new token logs
everybody out. A session ends with the token that opened it.
"""

import base64
import hashlib
import hmac
import json
import os
import secrets
import time
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection, Request

from parley.dashboard.providers import SESSION_SECONDS as USER_SECONDS
from parley.dashboard.providers import Provider, User, UserRefused
from parley.dashboard.tokens import TokenFile

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
class Visitor:
    """Who asks, and what they may ask for."""

    role: str
    """`web` for the page's own token, `token` for a named one, `user` for a user of the provider."""
    name: str
    permissions: tuple[str, ...]

    @property
    def caller(self) -> str:
        """What parties are told of who asks: a name that no client's certificate can have, but for `page`."""
        return self.name if self.role == "web" else f"{self.role} {self.name}"


NOBODY = Visitor("web", "", ())
visitor: ContextVar[Visitor] = ContextVar("visitor", default=NOBODY)
"""Whose request is being answered."""


@dataclass(frozen=True)
class Access:
    """Checks requests against the page's token, named tokens and the provider."""

    token: str
    secure: bool
    """Whether the page is served over TLS."""
    permissions: tuple[str, ...] = ()
    """What whoever has the page's own token may do."""
    tokens: TokenFile | None = None
    provider: Provider | None = None

    @property
    def cookie(self) -> str:
        """The cookie's name; the prefix makes browsers insist on TLS and on this very host."""
        return "__Host-parley" if self.secure else "parley"

    @property
    def flow_cookie(self) -> str:
        """The cookie of a login at the provider that is not finished."""
        return f"{self.cookie}-login"

    async def shown(self, token: str) -> tuple[Visitor, str] | None:
        """Who shows a token, and the session that it opens."""
        if hmac.compare_digest(token.strip().encode(), self.token.encode()):
            return self._page(), self.sealed({"role": "web"}, SESSION_SECONDS)
        named = self.tokens.shown(token) if self.tokens is not None else None
        if named is not None:
            facts = {"role": "token", "name": named.name, "mark": named.mark}
            return Visitor("token", named.name, named.permissions), self.sealed(facts, SESSION_SECONDS)
        return None

    async def visitor(self, request: HTTPConnection) -> Visitor | None:
        """Who sends a request; None if it shows nothing that stands."""
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            found = await self.shown(bearer)
            if found is not None:
                return found[0]
            if self.provider is not None and bearer.count(".") == 2:
                try:
                    return self._user(await self.provider.bearer(bearer.strip()))
                except UserRefused:
                    return None
        return self.returning(request)

    def returning(self, request: HTTPConnection) -> Visitor | None:
        """Who has logged in before, if the session lasts and what opened it still stands."""
        facts = self.unsealed(request.cookies.get(self.cookie, ""))
        if facts is None or "role" not in facts:
            return None
        if facts["role"] == "token" and self.tokens is not None:
            named = self.tokens.named(facts["name"], facts["mark"])
            return None if named is None else Visitor("token", named.name, named.permissions)
        if facts["role"] == "user" and self.provider is not None:
            return self._user(User(facts["name"], tuple(facts["groups"])))
        return self._page() if facts["role"] == "web" else None

    def user_session(self, user: User) -> str:
        """A session for somebody whom the provider has named."""
        return self.sealed({"role": "user", "name": user.name, "groups": user.groups}, USER_SECONDS)

    def sealed(self, facts: Mapping[str, Any], seconds: float) -> str:
        """Facts that only this page can have written, for a while."""
        content = json.dumps({**facts, "expires": time.time() + seconds}).encode()
        text = base64.urlsafe_b64encode(content).decode()
        return f"{text}.{self._seal(text)}"

    def unsealed(self, value: str) -> dict[str, Any] | None:
        """The facts in a cookie; None if this page did not write it, or it has expired."""
        text, _, seal = value.partition(".")
        if not hmac.compare_digest(seal.encode(), self._seal(text).encode()):
            return None
        facts: dict[str, Any] = json.loads(base64.urlsafe_b64decode(text))
        return facts if facts["expires"] > time.time() else None

    def _page(self) -> Visitor:
        return Visitor("web", "page", self.permissions)

    def _user(self, user: User) -> Visitor:
        assert self.provider is not None  # noqa: S101 (only it names users)
        return Visitor("user", user.name, self.provider.terms.permissions(user.name, user.groups))

    def _seal(self, text: str) -> str:
        key = hashlib.sha256(b"parley web session\0" + self.token.encode()).digest()
        return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def is_same_origin(request: Request) -> bool:
    """Whether a request comes from this page itself, as far as the browser says where it comes from."""
    if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        return False
    origin = request.headers.get("origin")
    return origin is None or urlsplit(origin).netloc == request.headers.get("host")
