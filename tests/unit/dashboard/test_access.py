"""The page's tokens and cookies."""

import base64
import json
import stat
import time

import pytest
from starlette.requests import HTTPConnection

from parley.dashboard import access as module
from parley.dashboard.access import Access, TokenInvalid, Visitor, read_or_create_token
from parley.dashboard.tokens import FILE, TokenFile, TokenRefused

PAGE = Visitor("web", "page", ("watch",))


def request(**headers):
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    return HTTPConnection({"type": "http", "headers": pairs})


def page(token="t" * 43, secure=True, **options):
    return Access(token, secure, ("watch",), **options)


def test_a_token_is_made_once_and_for_its_owner_alone(tmp_path):
    path = tmp_path / "web.token"
    token = read_or_create_token(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_or_create_token(path) == token
    assert len(token) >= 43, "256 bits"


def test_a_token_that_others_may_read_or_guess_is_refused(tmp_path):
    path = tmp_path / "web.token"
    path.write_text("x" * 40)
    path.chmod(0o644)
    with pytest.raises(TokenInvalid, match="chmod 600"):
        read_or_create_token(path)
    path.write_text("short")
    path.chmod(0o600)
    with pytest.raises(TokenInvalid, match="remove it"):
        read_or_create_token(path)


async def test_a_cookie_ends_with_its_time_and_with_the_pages_token(monkeypatch):
    access = page()
    _, session = await access.shown("t" * 43)
    cookie = f"{access.cookie}={session}"
    assert await access.visitor(request(cookie=cookie)) == PAGE
    assert await page("u" * 43).visitor(request(cookie=cookie)) is None, "a new token logs everybody out"
    later = time.time() + module.SESSION_SECONDS + 1
    monkeypatch.setattr(time, "time", lambda: later)
    assert await access.visitor(request(cookie=cookie)) is None


@pytest.mark.parametrize("value", ["", ".", "99999999999.", "99999999999.00", "soon.00", "é.é"])
async def test_a_made_up_cookie_opens_nothing(value):
    shown = HTTPConnection({"type": "http", "headers": [(b"cookie", f"parley={value}".encode("latin-1"))]})
    assert await page(secure=False).visitor(shown) is None


async def test_a_cookie_whose_facts_were_changed_opens_nothing():
    access = page()
    text, _, seal = access.sealed({"role": "token", "name": "ann", "mark": ""}, 60).partition(".")
    facts = json.loads(base64.urlsafe_b64decode(text)) | {"role": "web"}
    forged = base64.urlsafe_b64encode(json.dumps(facts).encode()).decode()
    assert await access.visitor(request(cookie=f"{access.cookie}={forged}.{seal}")) is None


async def test_the_cookie_of_an_unfinished_login_is_no_session():
    access = page()
    assert await access.visitor(request(cookie=f"{access.cookie}={access.sealed({'flow': {}}, 60)}")) is None


async def test_only_a_token_itself_is_a_bearer():
    access = page()
    assert await access.visitor(request(authorization=f"Bearer {'t' * 43}")) == PAGE
    for wrong in ("", "Bearer", "Bearer t", f"Basic {'t' * 43}"):
        assert await access.visitor(request(authorization=wrong)) is None


async def test_a_named_token_has_its_own_permissions_and_is_kept_as_a_digest(tmp_path):
    tokens = TokenFile(tmp_path)
    token = tokens.create("grafana", ["watch", "ledger"])
    path = tmp_path / FILE
    assert {stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()} == {0o600}
    assert token not in path.read_text()
    found = await page(tokens=TokenFile(tmp_path)).visitor(request(authorization=f"Bearer {token}"))
    assert found == Visitor("token", "grafana", ("watch", "ledger"))


async def test_a_revoked_token_ends_its_sessions_at_once_also_if_the_name_is_taken_again(tmp_path):
    tokens = TokenFile(tmp_path)
    access = page(tokens=tokens)
    _, session = await access.shown(tokens.create("ann", ["start"]))
    cookie = request(cookie=f"{access.cookie}={session}")
    assert await access.visitor(cookie) == Visitor("token", "ann", ("start",))
    TokenFile(tmp_path).revoke("ann")  # as another process does it
    assert await access.visitor(cookie) is None
    TokenFile(tmp_path).create("ann", ["start"])
    assert await access.visitor(cookie) is None


async def test_a_token_expires(tmp_path, monkeypatch):
    tokens = TokenFile(tmp_path)
    token = tokens.create("ann", ["start"], days=1)
    later = time.time() + 86401
    monkeypatch.setattr(time, "time", lambda: later)
    assert await page(tokens=tokens).visitor(request(authorization=f"Bearer {token}")) is None


def test_tokens_that_cannot_be_are_refused(tmp_path):
    tokens = TokenFile(tmp_path)
    tokens.create("ann", ["start"])
    for name, permissions, reason in (
        ("ann", ["watch"], "revoke it first"),
        ("a b", ["watch"], "no name"),
        ("", ["watch"], "no name"),
        ("bob", [], "may do nothing"),
    ):
        with pytest.raises(TokenRefused, match=reason):
            tokens.create(name, permissions)
    with pytest.raises(TokenRefused, match="known tokens: ann"):
        tokens.revoke("eve")
    (tmp_path / FILE).write_text("[{]")
    with pytest.raises(TokenRefused, match="backup"):
        TokenFile(tmp_path).all()
