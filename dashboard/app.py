"""The page: static files, a small JSON interface, and server-sent events.

Everything but the login needs a token, a user or a session of one (`access`). A request that changes something must
come from the page itself: it carries a header that a foreign page cannot set without asking, and the origin that the
browser states.
"""

import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from parley.dashboard.access import CSRF_HEADER, SESSION_SECONDS, Access, is_same_origin, visitor
from parley.dashboard.card import STYLE_HASH, card_html, make_card
from parley.dashboard.crossings import crossings, tables_of
from parley.dashboard.providers import FLOW_SECONDS, Flow, Provider, ProviderFailed, UserRefused
from parley.dashboard.providers import SESSION_SECONDS as USER_SECONDS
from parley.dashboard.rest import OPENAPI, asked_rows
from parley.dashboard.tokens import TokenRefused
from parley.dashboard.views import Refused, RunAccess
from parley.spec.comparison import differences

STATIC = Path(__file__).parent / "static"
CALLBACK = "/login/callback"
PUBLIC = frozenset({"/login", "/login/provider", CALLBACK, "/static/style.css", "/static/icon.svg"})
"""What anyone may fetch: enough for the login form to look right."""
LARGEST_BODY, LARGEST_LOGIN = 2 << 20, 4096
LONGEST_SEARCH, MOST_COMPARED = 200, 8
CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
CARD_POLICY = f"default-src 'none'; style-src '{STYLE_HASH}'; base-uri 'none'; frame-ancestors 'none'"
HEADERS = {
    "content-security-policy": CONTENT_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    "cache-control": "no-store",
}


class Guard:
    """Puts the security headers on every answer, and lets nobody in without the token."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                given = {name for name, _ in message["headers"]}
                extra = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *(pair for pair in extra if pair[0] not in given)]
            await send(message)

        refusal = await self._refusal(request)
        await (refusal or self._app)(scope, receive, guarded)

    async def _refusal(self, request: Request) -> Response | None:
        path, changes = request.url.path, request.method not in ("GET", "HEAD")
        if changes and not is_same_origin(request):
            return _problem(403, "FOREIGN_ORIGIN", "the request comes from another page than this one")
        if path in PUBLIC:
            return None
        try:
            found = await self._access.visitor(request)
        except (ProviderFailed, TokenRefused) as error:
            return _problem(503, "LOGIN_UNAVAILABLE", str(error))
        if found is None:
            if path == "/":
                return _login(self._access)
            return _problem(
                401, "NOT_LOGGED_IN", "log in at / with a token of this coordinator, or send it as a bearer"
            )
        visitor.set(found)
        if changes and CSRF_HEADER not in request.headers:
            return _problem(403, "HEADER_MISSING", f"send the header {CSRF_HEADER}: 1 with what changes something")
        return None


def make_app(runs: RunAccess, access: Access) -> Starlette:
    """The page of one coordinator."""
    routes = _Routes(runs, access)
    return Starlette(
        routes=[
            Route("/", _file("index.html")),
            Route("/login", routes.login, methods=["POST"]),
            Route("/login", routes.login_form),
            Route("/login/provider", routes.begin_login),
            Route(CALLBACK, routes.finish_login),
            Route("/logout", routes.logout, methods=["POST"]),
            Route("/metrics", routes.metrics),
            Route("/api/runs", routes.runs),
            Route("/api/runs", routes.start, methods=["POST"]),
            Route("/api/check", routes.check, methods=["POST"]),
            Route("/api/parties", routes.parties),
            Route("/api/audit", routes.audit),
            Route("/api/runs/{run}", routes.run),
            Route("/api/runs/{run}/events", routes.events),
            Route("/api/runs/{run}/ledger", routes.ledger),
            Route("/api/runs/{run}/crossings", routes.crossings),
            Route("/api/runs/{run}/coefficients", routes.coefficients),
            Route("/api/runs/{run}/cancel", routes.cancel, methods=["POST"]),
            Route("/api/runs/{run}/resume", routes.resume, methods=["POST"]),
            Route("/api/runs/{run}/tags", routes.tag, methods=["POST"]),
            Route("/api/runs/{run}/delete", routes.delete, methods=["POST"]),
            Route("/api/runs/{run}/predict", routes.predict, methods=["POST"]),
            Route("/api/compare", routes.compare),
            Route("/api/openapi.json", _openapi),
            Route("/api/deployments", routes.deployments),
            Route("/api/deployments/{name}/predictions", routes.predict_rows, methods=["POST"]),
            Route("/api/runs/{run}/card.json", routes.card_json),
            Route("/runs/{run}/card", routes.card),
            Mount("/static", StaticFiles(directory=STATIC)),
        ],
        middleware=[Middleware(Guard, access=access)],
        exception_handlers={Refused: _refused, ProviderFailed: _provider_failed},
    )


class _Routes:
    """Each method answers one request."""

    def __init__(self, runs: RunAccess, access: Access) -> None:
        self._runs, self._access = runs, access

    async def login_form(self, _: Request) -> Response:
        return _login(self._access, 200)

    async def login(self, request: Request) -> Response:
        body = await _body(request, LARGEST_LOGIN)
        token = parse_qs(body.decode("utf-8", "replace")).get("token", [""])[0]
        shown = await self._access.shown(token)
        if shown is None:
            return _login(self._access, problem="That is no token of this coordinator.")
        answer = RedirectResponse("/", status_code=303)
        self._keep(answer, self._access.cookie, shown[1], SESSION_SECONDS, "strict")
        return answer

    async def begin_login(self, request: Request) -> Response:
        provider = self._provider()
        flow = await provider.begin(self._callback(request, provider))
        answer = RedirectResponse(flow.address, status_code=303)
        sealed = self._access.sealed({"flow": asdict(flow)}, FLOW_SECONDS)
        self._keep(answer, self._access.flow_cookie, sealed, FLOW_SECONDS, "lax")  # it comes back from another site
        return answer

    async def finish_login(self, request: Request) -> Response:
        provider, asked = self._provider(), request.query_params
        facts = self._access.unsealed(request.cookies.get(self._access.flow_cookie, "")) or {}
        try:
            if "flow" not in facts or "code" not in asked:
                raise UserRefused("the provider did not let you in, or it took too long: begin again")
            flow = Flow(**facts["flow"])
            user = await provider.finish(flow, self._callback(request, provider), asked.get("state", ""), asked["code"])
        except UserRefused as refused:
            return _login(self._access, problem=str(refused).capitalize())
        # A strict cookie is not sent along a redirect from another site: the page goes on by itself.
        answer = HTMLResponse('<!doctype html><meta http-equiv="refresh" content="0;url=/"><a href="/">Go on</a>')
        self._keep(answer, self._access.cookie, self._access.user_session(user), USER_SECONDS, "strict")
        answer.delete_cookie(self._access.flow_cookie, httponly=True, samesite="lax", secure=self._access.secure)
        return answer

    def _keep(
        self, answer: Response, cookie: str, value: str, seconds: int, same_site: Literal["strict", "lax"]
    ) -> None:
        answer.set_cookie(cookie, value, max_age=seconds, httponly=True, samesite=same_site, secure=self._access.secure)

    def _provider(self) -> Provider:
        if self._access.provider is None:
            raise Refused(404, "NO_PROVIDER", "no OpenID Connect provider is configured (`web.provider`)")
        return self._access.provider

    def _callback(self, request: Request, provider: Provider) -> str:
        seen = urlsplit(str(request.base_url))
        return (provider.terms.url or f"{seen.scheme}://{seen.netloc}").rstrip("/") + CALLBACK

    async def logout(self, _: Request) -> Response:
        answer = _json({})
        answer.delete_cookie(self._access.cookie, httponly=True, samesite="strict", secure=self._access.secure)
        return answer

    async def metrics(self, _: Request) -> Response:
        content, kind = await self._runs.metrics()
        return Response(content, media_type=kind)

    async def runs(self, request: Request) -> Response:
        search = request.query_params.get("search", "")[:LONGEST_SEARCH]
        runs = [asdict(run) for run in await self._runs.runs(search)]
        for run in runs:
            del run["spec_yaml"]
        return _json({"runs": runs, "version": self._runs.version})

    async def run(self, request: Request) -> Response:
        run = await self._runs.run(_run(request))
        return _json({**asdict(run), "tables": tables_of(run.spec_yaml)})

    async def parties(self, _: Request) -> Response:
        return _json([asdict(party) for party in await self._runs.parties()])

    async def audit(self, _: Request) -> Response:
        return _json([asdict(entry) for entry in await self._runs.audit()])

    async def ledger(self, request: Request) -> Response:
        return _json(asdict(await self._runs.ledger(_run(request))))

    async def crossings(self, request: Request) -> Response:
        run = await self._runs.run(_run(request))
        return _json([asdict(statement) for statement in crossings(run.spec_yaml)])

    async def coefficients(self, request: Request) -> Response:
        return _json([asdict(each) for each in await self._runs.coefficients(_run(request))])

    async def check(self, request: Request) -> Response:
        (spec,) = await _texts(request, "spec")
        return _json(asdict(await self._runs.check(spec)))

    async def start(self, request: Request) -> Response:
        content = await _content(request)
        spec, request_id = _texts_of(content, "spec", "request_id")
        priority = content.get("priority", 0)
        if type(priority) is not int:
            raise Refused(400, "MESSAGE_INVALID", "priority: send a whole number, or leave it out")
        return _json(asdict(await self._runs.start(request_id, spec, priority)), 201)

    async def cancel(self, request: Request) -> Response:
        return _json(asdict(await self._runs.cancel(_run(request))))

    async def resume(self, request: Request) -> Response:
        return _json(asdict(await self._runs.resume(_run(request))))

    async def tag(self, request: Request) -> Response:
        add, remove = await _texts(request, "add", "remove")
        return _json(asdict(await self._runs.tag(_run(request), add.split(), remove.split())))

    async def delete(self, request: Request) -> Response:
        await self._runs.delete(_run(request))
        return _json({})

    async def predict(self, request: Request) -> Response:
        table, ids = await _texts(request, "table", "ids")
        wanted = [line.strip() for line in ids.replace(",", "\n").splitlines() if line.strip()]
        return _json(asdict(await self._runs.predict(_run(request), table.strip(), wanted)))

    async def deployments(self, _: Request) -> Response:
        return _json([asdict(each) for each in await self._runs.deployments()])

    async def predict_rows(self, request: Request) -> Response:
        ids, features = asked_rows(await _body(request, LARGEST_BODY))
        return _json(asdict(await self._runs.predict_rows(str(request.path_params["name"]), ids, features)))

    async def compare(self, request: Request) -> Response:
        chosen = request.query_params.getlist("run")
        if not 2 <= len(chosen) <= MOST_COMPARED:
            raise Refused(400, "MESSAGE_INVALID", f"name 2 to {MOST_COMPARED} runs to compare")
        runs = [await self._runs.run(run) for run in chosen]
        facts = [{key: value for key, value in asdict(run).items() if key != "spec_yaml"} for run in runs]
        return _json({"runs": facts, "settings": differences([run.spec_yaml for run in runs])})

    async def events(self, request: Request) -> Response:
        last = request.headers.get("last-event-id") or request.query_params.get("after") or "0"
        after = int(last) if last.isdigit() else 0
        run = await self._runs.run(_run(request))  # an unknown run is refused before the stream begins

        async def stream() -> AsyncIterator[str]:
            yield "retry: 2000\n\n"
            async for event, now in self._runs.watch(run.run_id, after):
                if await self._access.visitor(request) is None:  # the token was revoked, or the session has ended
                    return
                facts = {key: value for key, value in asdict(now).items() if key != "spec_yaml"}
                data = json.dumps(_finite({"event": asdict(event), "run": facts}), allow_nan=False)
                yield f"id: {event.sequence}\nevent: run\ndata: {data}\n\n"
            yield "event: end\ndata: {}\n\n"

        return StreamingResponse(stream(), media_type="text/event-stream")

    async def card(self, request: Request) -> Response:
        return HTMLResponse(card_html(await self._card(request)), headers={"content-security-policy": CARD_POLICY})

    async def card_json(self, request: Request) -> Response:
        card = await self._card(request)
        return _json(card, headers={"content-disposition": f'attachment; filename="{card["run"]["run_id"]}.json"'})

    async def _card(self, request: Request) -> dict[str, Any]:
        run = await self._runs.run(_run(request))
        events, ledger = await self._runs.events(run.run_id), await self._runs.ledger(run.run_id)
        tuned = await self._runs.coefficients(run.run_id)
        return make_card(run, events, ledger, await self._runs.parties(), self._runs.version, tuned)


def _login(access: Access, status: int = 401, problem: str = "") -> Response:
    page = (STATIC / "login.html").read_text().replace("PROBLEM", escape(problem))
    if problem:
        page = page.replace('class="problem" hidden', 'class="problem"')
    if access.provider is not None:
        page = page.replace('class="provider" hidden', 'class="provider"')
    return HTMLResponse(page, status_code=status)


def _file(name: str) -> Callable[[Request], Awaitable[Response]]:
    async def answer(_: Request) -> Response:
        return FileResponse(STATIC / name)

    return answer


async def _openapi(_: Request) -> Response:
    return _json(OPENAPI)


def _run(request: Request) -> str:
    return str(request.path_params["run"])


async def _content(request: Request) -> dict[str, Any]:
    """The JSON object of a body; an empty one for anything else."""
    try:
        content = json.loads(await _body(request, LARGEST_BODY))
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


async def _texts(request: Request, *fields: str) -> list[str]:
    return _texts_of(await _content(request), *fields)


def _texts_of(content: dict[str, Any], *fields: str) -> list[str]:
    values = [value for field in fields if isinstance(value := content.get(field), str)]
    if len(values) < len(fields):
        raise Refused(400, "MESSAGE_INVALID", f"send a JSON object with {' and '.join(fields)} as text")
    return values


async def _body(request: Request, largest: int) -> bytes:
    """The body, which is not read past its limit: a sender need not say its length."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > largest:
            raise Refused(413, "TOO_LARGE", f"at most {largest} bytes are taken")
    return body


def _json(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse(_finite(content), status_code=status, headers=headers)


def _finite(value: Any) -> Any:
    """JSON has no infinity: an unbounded ε is told as text."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value if not isinstance(value, float) or math.isfinite(value) else str(value)


def _problem(status: int, reason: str, message: str) -> JSONResponse:
    return JSONResponse({"reason": reason, "message": message}, status_code=status)


async def _provider_failed(_: Request, error: Exception) -> Response:
    return _problem(503, "LOGIN_UNAVAILABLE", str(error))


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)  # noqa: S101 (registered for it)
    return _problem(error.status, error.reason, str(error))
