"""Users of an OpenID Connect provider: the code flow with PKCE for browsers, and JSON web tokens as bearers.

What the provider says counts only if its key signed it for this page: issuer, audience, time, and in the code flow the
nonce are checked. Keys are fetched again when a token names one that is not known, at most every half a minute.
"""

import asyncio
import hmac
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

SCOPES = "openid profile email"
FLOW_SECONDS = 600
"""A login must be finished by then."""
SESSION_SECONDS = 3600
"""A user who is taken out at the provider is out by then."""
TIMEOUT_SECONDS = 10
KEYS_SECONDS = 30.0
ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Signatures with a key that only the provider has; never `none`, never a shared secret."""


class ProviderFailed(RuntimeError):
    """The provider cannot be reached, or does not say what it must."""


class UserRefused(PermissionError):
    """What somebody shows is not the provider's word for a user."""


@dataclass(frozen=True)
class ProviderTerms:
    """Which provider, and what its users may do."""

    issuer: str
    client_id: str
    client_secret: str | None
    user_claim: str
    group_claim: str
    users: Mapping[str, Sequence[str]]
    groups: Mapping[str, Sequence[str]]
    url: str | None
    """The page's address as browsers see it; None to take it from the request."""

    def permissions(self, name: str, groups: Sequence[str]) -> tuple[str, ...]:
        """What a user may do, by name and by groups."""
        granted = [*self.users.get(name, ()), *(each for group in groups for each in self.groups.get(group, ()))]
        return tuple(dict.fromkeys(granted))


@dataclass(frozen=True)
class User:
    """Somebody whom the provider has named."""

    name: str
    groups: tuple[str, ...]


@dataclass(frozen=True)
class Flow:
    """A login that has begun: what must come back."""

    address: str
    state: str
    nonce: str
    verifier: str


@dataclass
class Provider:
    """Speaks with one provider."""

    terms: ProviderTerms
    _about: dict[str, Any] = field(default_factory=dict)
    _keys: Any = None
    _fetched: float = 0.0

    async def begin(self, callback: str) -> Flow:
        """Where to send a browser."""
        return await asyncio.to_thread(self._begin, callback)

    async def finish(self, flow: Flow, callback: str, state: str, code: str) -> User:
        """The user with whom a browser came back.

        Raises:
            UserRefused: if it is not this login, or not what the provider signed.
            ProviderFailed: if the provider does not answer.
        """
        if not hmac.compare_digest(state.encode(), flow.state.encode()):
            raise UserRefused("this login was begun elsewhere: begin again")
        return await asyncio.to_thread(self._finish, flow, callback, code)

    async def bearer(self, token: str) -> User:
        """The user for whom a JSON web token was issued to this page. Raises as `finish` does."""
        return await asyncio.to_thread(self._user, token, None)

    def _begin(self, callback: str) -> Flow:
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        with self._session(callback) as session:
            address, _ = session.create_authorization_url(
                self._metadata("authorization_endpoint"), state=state, nonce=nonce, code_verifier=verifier
            )
        return Flow(address, state, nonce, verifier)

    def _finish(self, flow: Flow, callback: str, code: str) -> User:
        from authlib.integrations.base_client.errors import OAuthError
        from requests import RequestException

        try:
            with self._session(callback) as session:
                answer = session.fetch_token(
                    self._metadata("token_endpoint"),
                    grant_type="authorization_code",
                    code=code,
                    code_verifier=flow.verifier,
                    timeout=TIMEOUT_SECONDS,
                )
        except OAuthError:
            raise UserRefused("the provider does not take this login's code: begin again") from None
        except (RequestException, ValueError) as error:
            raise ProviderFailed(f"{self.terms.issuer} does not answer ({type(error).__name__}): try again") from None
        if not isinstance(answer.get("id_token"), str):
            raise ProviderFailed(f"{self.terms.issuer} sent no ID token: let it serve the scope `openid`")
        return self._user(answer["id_token"], flow.nonce)

    def _user(self, token: str, nonce: str | None) -> User:
        from joserfc import jwt
        from joserfc.errors import JoseError

        wanted: dict[str, Any] = {
            "iss": {"essential": True, "value": self.terms.issuer},
            "aud": {"essential": True, "value": self.terms.client_id},
            "exp": {"essential": True},
            "sub": {"essential": True},
        }
        if nonce is not None:
            wanted["nonce"] = {"essential": True, "value": nonce}
        try:
            try:
                decoded = jwt.decode(token, self._key_set(), algorithms=list(ALGORITHMS))
            except (JoseError, ValueError):
                if not self._forget_keys():
                    raise
                decoded = jwt.decode(token, self._key_set(), algorithms=list(ALGORITHMS))
            jwt.JWTClaimsRegistry(leeway=10, **wanted).validate(decoded.claims)
        except (JoseError, ValueError):
            raise UserRefused("this is no token that the provider signed for this page and that lasts") from None
        return self._named(decoded.claims)

    def _named(self, claims: Mapping[str, Any]) -> User:
        claim = self.terms.user_claim
        name = claims.get(claim)
        if not isinstance(name, str) or not name:
            raise UserRefused(f"the provider names nobody: it sent no claim `{claim}`")
        if claim == "email" and claims.get("email_verified") is not True:
            raise UserRefused("the provider has not verified this address of mail: choose another `user_claim`")
        authorised = claims.get("azp", self.terms.client_id)
        if authorised != self.terms.client_id:
            raise UserRefused("this token was issued to another client of the provider")
        groups = claims.get(self.terms.group_claim, [])
        named = tuple(each for each in groups if isinstance(each, str)) if isinstance(groups, list) else ()
        return User(name, tuple(each for each in named if each in self.terms.groups))

    def _session(self, callback: str) -> Any:
        from authlib.integrations.requests_client import OAuth2Session

        method = "none" if self.terms.client_secret is None else "client_secret_basic"
        return OAuth2Session(
            self.terms.client_id,
            self.terms.client_secret,
            token_endpoint_auth_method=method,
            scope=SCOPES,
            redirect_uri=callback,
            code_challenge_method="S256",
        )

    def _metadata(self, name: str) -> str:
        if not self._about:
            about = self._fetch(f"{self.terms.issuer.rstrip('/')}/.well-known/openid-configuration")
            if about.get("issuer") != self.terms.issuer:
                raise ProviderFailed(f"{self.terms.issuer} calls itself {about.get('issuer')}: write that as `issuer`")
            self._about = about
        found = self._about.get(name)
        if not isinstance(found, str):
            raise ProviderFailed(f"{self.terms.issuer} says no {name}: is it an OpenID Connect provider?")
        return found

    def _key_set(self) -> Any:
        from joserfc.jwk import KeySet

        if self._keys is None:
            self._keys = KeySet.import_key_set(self._fetch(self._metadata("jwks_uri")))  # type: ignore[arg-type]
            self._fetched = time.monotonic()
        return self._keys

    def _forget_keys(self) -> bool:
        """Fetch keys anew the next time; false if that was done just now."""
        if time.monotonic() - self._fetched < KEYS_SECONDS:
            return False
        self._keys = None
        return True

    def _fetch(self, address: str) -> dict[str, Any]:
        import requests

        try:
            answer = requests.get(address, timeout=TIMEOUT_SECONDS)
            answer.raise_for_status()
            content = answer.json()
        except (requests.RequestException, ValueError) as error:
            raise ProviderFailed(f"{address} does not answer ({type(error).__name__}): try again") from None
        if not isinstance(content, dict):
            raise ProviderFailed(f"{address} is no JSON object: is it an OpenID Connect provider?")
        return content
