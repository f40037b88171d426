"""A gRPC relay in front of a service: every message between the services of a federation can be seen, and changed.

It ends the TLS of both sides with the federation's own certificates, so that the processes behind it are the product's,
unchanged: the caller sees the service's certificate, the service sees the caller's.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from functools import cache
from pathlib import Path
from typing import Any

import grpc

from parley.services.wire.authorisation import Caller, caller_of
from parley.services.wire.transport import OPTIONS, listen, open_channel

LOOP_SECONDS = 30.0


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """The event loop of all relays of this process, in a thread of its own."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True, name="relays").start()
    return loop


class Relay:
    """Listens on a free port of this machine as service `name`, and passes calls on to its address."""

    def __init__(self, role: str, name: str, target: str, certificates: Path) -> None:
        self._role, self._name, self._target, self._certificates = role, name, target, certificates
        self._calls: dict[tuple[str, str], set[Any]] = {}
        self._channels: dict[Caller, grpc.aio.Channel] = {}
        self._server, self.address = self._await(self._listen())

    def requests(self, method: str, caller: str, messages: AsyncIterator[bytes]) -> AsyncIterator[bytes]:  # noqa: ARG002
        """What reaches the service of what a caller sends."""
        return messages

    def responses(self, method: str, caller: str, messages: AsyncIterator[bytes]) -> AsyncIterator[bytes]:  # noqa: ARG002
        """What reaches a caller of what the service answers."""
        return messages

    def is_cut(self, method: str, caller: str) -> bool:  # noqa: ARG002
        """Whether a caller's calls of a method do not get through."""
        return False

    def callers(self, method: str) -> set[str]:
        """Who has a call of this method open."""
        return {caller for (called, caller), calls in self._calls.items() if called == method and calls}

    def cancel(self, method: str, caller: str) -> None:
        """Break every call of this method that a caller has open."""
        for call in list(self._calls.get((method, caller), ())):
            _loop().call_soon_threadsafe(call.cancel)

    def close(self) -> None:
        """Hang up on everyone."""
        self._await(self._close())

    @staticmethod
    def _await(awaitable: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(awaitable, _loop()).result(LOOP_SECONDS)

    async def _listen(self) -> tuple[grpc.aio.Server, str]:
        server = grpc.aio.server(options=OPTIONS)
        server.add_generic_rpc_handlers((_Everything(self._pass_on),))
        port = listen(server, "127.0.0.1:0", self._certificates / self._name)
        await server.start()
        return server, f"127.0.0.1:{port}"

    async def _close(self) -> None:
        await self._server.stop(0)
        for channel in self._channels.values():
            await channel.close()

    async def _pass_on(
        self, method: str, messages: AsyncIterator[bytes], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[bytes]:
        caller = caller_of(context)
        if self.is_cut(method, caller.name):
            await context.abort(grpc.StatusCode.UNAVAILABLE, "cut off")
        if caller not in self._channels:
            self._channels[caller] = open_channel(
                self._target, self._certificates / caller.name, self._role, self._name, own_connection=True
            )
        passing = self.requests(method, caller.name, messages)
        call = self._channels[caller].stream_stream(method)(passing, timeout=context.time_remaining())
        calls = self._calls.setdefault((method, caller.name), set())
        calls.add(call)
        try:
            async for response in self.responses(method, caller.name, call):
                yield response
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details() or "", tuple(error.trailing_metadata() or ()))
        except asyncio.CancelledError:
            if not self.is_cut(method, caller.name):
                raise
            await context.abort(grpc.StatusCode.UNAVAILABLE, "cut off")
        finally:
            calls.discard(call)
            call.cancel()


class _Everything(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Takes every method as a stream of bytes in both directions, which is what any call is on the wire."""

    def __init__(self, pass_on: Callable[..., AsyncIterator[bytes]]) -> None:
        self._pass_on = pass_on

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        """A handler of any method."""
        method = handler_call_details.method

        async def behaviour(messages: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
            async for response in self._pass_on(method, messages, context):
                yield response

        return grpc.stream_stream_rpc_method_handler(behaviour)
