"""The page: static files, a small JSON interface, and server-sent events.

Everything but the login needs the token or its cookie. A request that changes something must come from the page
itself: it carries a header that a foreign page cannot set without asking, and the origin that the browser states.
"""

import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from parley.dashboard.access import CSRF_HEADER, SESSION_SECONDS, Access, is_same_origin
from parley.dashboard.card import STYLE_HASH, card_html, make_card
from parley.dashboard.crossings import crossings, tables_of
from parley.dashboard.rest import OPENAPI, asked_rows
from parley.dashboard.views import Refused, RunAccess
from parley.spec.comparison import differences

STATIC = Path(__file__).parent / "static"
PUBLIC = frozenset({"/login", "/static/style.css", "/static/icon.svg"})
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

        refusal = self._refusal(request)
        await (refusal or self._app)(scope, receive, guarded)

    def _refusal(self, request: Request) -> Response | None:
        path, changes = request.url.path, request.method not in ("GET", "HEAD")
        if changes and not is_same_origin(request):
            return _problem(403, "FOREIGN_ORIGIN", "the request comes from another page than this one")
        if path in PUBLIC:
            return None
        if not self._access.admits(request):
            if path == "/":
                return FileResponse(STATIC / "login.html", status_code=401)
            return _problem(401, "NOT_LOGGED_IN", "log in at / with the coordinator's token, or send it as a bearer")
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
            Route("/login", _file("login.html")),
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
        exception_handlers={Refused: _refused},
    )


class _Routes:
    """Each method answers one request."""

    def __init__(self, runs: RunAccess, access: Access) -> None:
        self._runs, self._access = runs, access

    async def login(self, request: Request) -> Response:
        body = await _body(request, LARGEST_LOGIN)
        token = parse_qs(body.decode("utf-8", "replace")).get("token", [""])[0]
        if not self._access.opens(token):
            page = (STATIC / "login.html").read_text().replace("hidden", "")  # shows the line that says so
            return HTMLResponse(page, status_code=401)
        answer = RedirectResponse("/", status_code=303)
        answer.set_cookie(
            self._access.cookie,
            self._access.make_cookie(),
            max_age=SESSION_SECONDS,
            httponly=True,
            samesite="strict",
            secure=self._access.secure,
        )
        return answer

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
        spec, request_id = await _texts(request, "spec", "request_id")
        return _json(asdict(await self._runs.start(request_id, spec)), 201)

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


def _file(name: str) -> Callable[[Request], Awaitable[Response]]:
    async def answer(_: Request) -> Response:
        return FileResponse(STATIC / name)

    return answer


async def _openapi(_: Request) -> Response:
    return _json(OPENAPI)


def _run(request: Request) -> str:
    return str(request.path_params["run"])


async def _texts(request: Request, *fields: str) -> list[str]:
    body = await _body(request, LARGEST_BODY)
    try:
        content = json.loads(body)
        values = [content[field] for field in fields]
    except (ValueError, KeyError, TypeError):
        values = [None]
    if not all(isinstance(value, str) for value in values):
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


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, Refused)  # noqa: S101 (registered for it)
    return _problem(error.status, error.reason, str(error))
