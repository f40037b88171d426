"""What is done by the web page, in the coordinator's audit trail."""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from parley.dashboard.access import NOBODY, visitor
from parley.services.coordinator.permissions import Note
from parley.services.wire.audit import AuditTrail

REFUSED = (401, 403)
_address: ContextVar[str] = ContextVar("address", default="")


class AuditedPage:
    """An ASGI application whose requests know where they come from when they are taken down."""

    def __init__(self, make: Callable[[Note], Any], trail: AuditTrail) -> None:
        """`make` makes the application, given what takes its actions down."""
        self._trail = trail
        self._app = make(self._note)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one request; one that is refused before it reaches the page is taken down too."""
        host, port = scope.get("client") or ("", 0)
        _address.set(f"{host}:{port}")
        visitor.set(NOBODY)

        async def watched(message: Any) -> None:
            if message["type"] == "http.response.start" and message["status"] in REFUSED:
                self._note(scope["path"], "", f"HTTP {message['status']}")
            await send(message)

        await self._app(scope, receive, watched)

    def _note(self, action: str, subject: str, outcome: str) -> None:
        asking = visitor.get()
        self._trail.note(asking.role, asking.name, _address.get(), action, subject, outcome)
