"""The page's token and cookie."""

import stat
import time

import pytest
from starlette.requests import HTTPConnection

from parley.dashboard import access as module
from parley.dashboard.access import Access, TokenInvalid, read_or_create_token


def request(**headers):
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    return HTTPConnection({"type": "http", "headers": pairs})


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


def test_a_cookie_ends_with_its_time_and_with_its_token(monkeypatch):
    access = Access("t" * 43, secure=True)
    cookie = f"{access.cookie}={access.make_cookie()}"
    assert access.admits(request(cookie=cookie))
    assert not Access("u" * 43, secure=True).admits(request(cookie=cookie)), "a new token logs everybody out"
    later = time.time() + module.SESSION_SECONDS + 1
    monkeypatch.setattr(time, "time", lambda: later)
    assert not access.admits(request(cookie=cookie))


@pytest.mark.parametrize("value", ["", ".", "99999999999.", "99999999999.00", "soon.00", "é.é"])
def test_a_made_up_cookie_opens_nothing(value):
    access = Access("t" * 43, secure=False)
    assert not access.admits(
        HTTPConnection({"type": "http", "headers": [(b"cookie", f"parley={value}".encode("latin-1"))]})
    )


def test_only_the_token_itself_is_a_bearer():
    access = Access("t" * 43, secure=True)
    assert access.admits(request(authorization=f"Bearer {'t' * 43}"))
    for wrong in ("", "Bearer", "Bearer t", f"Basic {'t' * 43}"):
        assert not access.admits(request(authorization=wrong))
