"""A gRPC relay in front of a party that loses, repeats and overtakes single messages between parties.

It ends the TLS of both sides with the test federation's own certificates, so that the processes behind it are the
product's, unchanged: the caller sees the party's certificate, the party sees the caller's. All calls pass; only
messages of `PeerService.Push` meet their fate, which is a function of sender, receiver and step alone: two runs over
the same links have the same trace, whatever the timing.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from parley.contracts.peer.v1 import peer_service_pb2 as pb
from parley.services.wire.authorisation import Caller, caller_of
from parley.services.wire.transport import OPTIONS, listen, open_channel

PUSH = "/parley.peer.v1.PeerService/Push"


@dataclass(frozen=True)
class Fate:
    """What happens to one message."""

    lost: bool = False
    repeated: bool = False
    overtaken: bool = False
    """It arrives after the next message on its link."""


Fates = Callable[[str, str, int], Fate]
"""(sender, receiver, step) → fate."""


def seeded_fates(seed: int, until: Callable[[int], bool], *, lost: float, repeated: float, overtaken: float) -> Fates:
    """Independent fates of the given rates for the steps that `until` names; the others pass untouched."""

    def fate(sender: str, receiver: str, step: int) -> Fate:
        if not until(step):
            return Fate()
        chance = np.random.default_rng([seed, step, *sender.encode(), 0, *receiver.encode()]).random(3)
        return Fate(bool(chance[0] < lost), bool(chance[1] < repeated), bool(chance[2] < overtaken))

    return fate


class Relay:
    """Listens on a free port of this machine as party `name`, and passes calls on to its address."""

    def __init__(self, name: str, target: str, certificates: Path, fates: Fates) -> None:
        self.fates = fates
        self.counts: Counter[str] = Counter()
        """Messages between parties by what happened to them."""
        self.latest_step = -1
        self.cut_off: set[str] = set()
        """Parties whose messages do not get through; everyone else's do."""
        self._pushes: dict[str, set[Any]] = {}
        self._name, self._target, self._certificates = name, target, certificates
        self._channels: dict[Caller, grpc.aio.Channel] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server, self.address = self._call(self._listen())

    @property
    def pushers(self) -> set[str]:
        """Parties that have a stream to this one."""
        return {name for name, calls in self._pushes.items() if calls}

    def cut(self, sender: str) -> None:
        """Let nothing of a party through from now on, and break its streams."""
        self.cut_off.add(sender)
        for call in list(self._pushes.get(sender, ())):
            self._loop.call_soon_threadsafe(call.cancel)

    def close(self) -> None:
        """Hang up on everyone."""
        if self._loop.is_running():
            self._call(self._close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(5)

    def _call(self, awaitable: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(awaitable, self._loop).result(30)

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
        self, method: str, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[bytes]:
        caller = caller_of(context)
        if method == PUSH and caller.name in self.cut_off:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "cut off")
        if caller not in self._channels:
            self._channels[caller] = open_channel(
                self._target, self._certificates / caller.name, "party", self._name, own_connection=True
            )
        passing = self._weathered(caller.name, requests) if method == PUSH else requests
        call = self._channels[caller].stream_stream(method)(passing, timeout=context.time_remaining())
        pushes = self._pushes.setdefault(caller.name, set()) if method == PUSH else set()
        pushes.add(call)
        try:
            async for response in call:
                yield response
        except grpc.aio.AioRpcError as error:
            await context.abort(error.code(), error.details() or "", tuple(error.trailing_metadata() or ()))
        except asyncio.CancelledError:
            if caller.name not in self.cut_off:
                raise
            await context.abort(grpc.StatusCode.UNAVAILABLE, "cut off")
        finally:
            pushes.discard(call)
            call.cancel()

    async def _weathered(self, sender: str, requests: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        held: list[bytes] = []
        async for data in requests:
            message = pb.PushRequest.FromString(data)
            if message.WhichOneof("body") != "push_sum":
                yield data
                continue
            step = message.push_sum.step
            fate = self.fates(sender, self._name, step)
            self.latest_step = max(self.latest_step, step)
            self.counts["sent"] += 1
            self.counts.update(name for name in ("lost", "repeated", "overtaken") if getattr(fate, name))
            copies = [] if fate.lost else [data] * (2 if fate.repeated else 1)
            due, held = (held, copies) if fate.overtaken else (copies + held, [])
            for each in due:
                yield each


class _Everything(grpc.GenericRpcHandler):
    """Takes every method as a stream of bytes in both directions, which is what any call is on the wire."""

    def __init__(self, pass_on: Callable[..., AsyncIterator[bytes]]) -> None:
        self._pass_on = pass_on

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        method = handler_call_details.method

        async def behaviour(requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> AsyncIterator[bytes]:
            async for response in self._pass_on(method, requests, context):
                yield response

        return grpc.stream_stream_rpc_method_handler(behaviour)
