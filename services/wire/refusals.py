"""Errors on the wire: one status code and one named reason for each refusal, from a service's own catalogue."""

import asyncio
import contextlib
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from parley.protocols.refusals import Catalogue, Refusal
from parley.protocols.tensor.codec import MessageInvalid
from parley.services.wire import metrics
from parley.services.wire.audit import AuditTrail, is_quiet, origin, subject_of
from parley.services.wire.authorisation import (
    Caller,
    NotAuthorised,
    Policy,
    caller_of,
    certificate_of,
    keep_certificate,
)
from parley.services.wire.certificate_files import CertificateError, CertificateExpired, PeerRefused
from parley.services.wire.revocation import CertificateRevoked, Standing
from parley.storage.failures import StorageFailed

DOMAIN = "parley"
LONGEST_BYTES = 1500
"""Of a refusal's sentence. It travels twice in the trailers, once percent-encoded, and gRPC drops trailers of 8 KiB."""
NO_MESSAGE = "the request is no message of this method's type"
logger = logging.getLogger(__name__)


SHARED: Catalogue = {
    NotAuthorised: Refusal("PERMISSION_DENIED", "NOT_AUTHORISED"),
    MessageInvalid: Refusal("INVALID_ARGUMENT", "MESSAGE_INVALID"),
    CertificateError: Refusal("FAILED_PRECONDITION", "CERTIFICATE_INVALID"),
    PeerRefused: Refusal("UNAUTHENTICATED", "CALLER_UNKNOWN"),
    CertificateExpired: Refusal("UNAUTHENTICATED", "CERTIFICATE_EXPIRED"),
    CertificateRevoked: Refusal("UNAUTHENTICATED", "CERTIFICATE_REVOKED"),
    NotImplementedError: Refusal("UNIMPLEMENTED", "NOT_IMPLEMENTED", "this method is not served here"),
}
"""What every service refuses alike."""


def find(catalogue: Catalogue, error: Exception) -> Refusal | None:
    """The refusal for an error, by the nearest class in the catalogue."""
    for kind in type(error).__mro__:
        for table in (catalogue, SHARED):
            if kind in table:
                return table[kind]
    return None


def reason_of(error: grpc.RpcError) -> str | None:
    """The named reason that a service gave, if it gave one."""
    try:
        status = rpc_status.from_call(error)
    except ValueError:  # the connection broke after the trailers, or something between changed them
        return None
    for detail in status.details if status is not None else ():
        info = error_details_pb2.ErrorInfo()
        if detail.Is(info.DESCRIPTOR) and detail.Unpack(info) and info.domain == DOMAIN:
            return str(info.reason)
    return None


async def abort(context: grpc.aio.ServicerContext, refusal: Refusal, message: str) -> None:
    """End a call with a status code, a sentence and the named reason."""
    message = shortened(message)
    detail = any_pb2.Any()
    detail.Pack(error_details_pb2.ErrorInfo(reason=refusal.reason, domain=DOMAIN))
    status = status_pb2.Status(code=grpc.StatusCode[refusal.status].value[0], message=message, details=[detail])
    rich = rpc_status.to_status(status)
    await context.abort(rich.code, rich.details, rich.trailing_metadata)


def shortened(message: str) -> str:
    """A sentence that fits the trailers: an error may quote what the caller sent, however long that is."""
    data = message.encode(errors="replace")
    return message if len(data) <= LONGEST_BYTES else data[:LONGEST_BYTES].decode(errors="ignore") + " …"


class _Malformed:
    """Stands for a request that is no protobuf of its type: whoever looks into it refuses it."""

    def __getattr__(self, _: str) -> Any:
        raise MessageInvalid(NO_MESSAGE)


class BoundaryInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """The one place where callers are checked and errors become refusals."""

    def __init__(
        self, policy: Policy, catalogue: Catalogue, standing: Standing | None = None, trail: AuditTrail | None = None
    ) -> None:
        """`standing` says whether a caller's certificate stands; without one, what TLS checked at first is enough.

        `trail` takes every call down that does more than look, and every refusal.
        """
        self._trail = trail
        self._policy = policy
        self._catalogue = catalogue
        self._standing = standing

    async def intercept_service(
        self, continuation: Callable[..., Awaitable[Any]], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        """Wrap the handler of a call."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        decode = _counting_decoder(method, handler.request_deserializer)
        encode = _counting_encoder(method, handler.response_serializer)
        if handler.unary_unary:
            return grpc.unary_unary_rpc_method_handler(self._single(method, handler.unary_unary), decode, encode)
        if handler.unary_stream:
            return grpc.unary_stream_rpc_method_handler(self._streamed(method, handler.unary_stream), decode, encode)
        if handler.stream_unary:
            unary = self._single(method, handler.stream_unary, lasts=True)
            return grpc.stream_unary_rpc_method_handler(unary, decode, encode)
        return grpc.stream_stream_rpc_method_handler(self._streamed(method, handler.stream_stream), decode, encode)

    def _single(self, method: str, behaviour: Callable[..., Any], *, lasts: bool = False) -> Callable[..., Any]:
        async def call(request: Any, context: grpc.aio.ServicerContext) -> Any:
            async with self._checked(method, request, context, lasts=lasts):
                return await behaviour(request, context)

        return call

    def _streamed(self, method: str, behaviour: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(behaviour):  # it writes to the context itself, as the health service does
            return self._single(method, behaviour, lasts=True)

        async def call(request: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
            async with self._checked(method, request, context, lasts=True):
                async for response in behaviour(request, context):
                    yield response

        return call

    @contextlib.asynccontextmanager
    async def _checked(
        self, method: str, request: Any, context: grpc.aio.ServicerContext, *, lasts: bool
    ) -> AsyncIterator[None]:
        """Around a call: its caller may make it, and as long as one `lasts` its certificate stands."""
        watch: asyncio.Task[None] | None = None
        try:
            caller = self._admit(method, context)
            _refuse_malformed(request)
            if self._trail is not None and not is_quiet(method):
                self._trail.note(caller.role, caller.name, origin(context.peer()), method, subject_of(request))
            watch = self._watched(context) if lasts else None
            yield
        except Exception as error:
            await self._refuse(method, request, context, error)
        except asyncio.CancelledError:
            if watch is None or not watch.done():
                raise
            fallen = CertificateRevoked("the caller's certificate stands no longer")
            await self._refuse(method, request, context, fallen)
        finally:
            if watch is not None:
                watch.cancel()

    def _admit(self, method: str, context: grpc.aio.ServicerContext) -> Caller:
        metrics.CALLS.labels(method).inc()
        certificate = keep_certificate(context)
        caller = caller_of(context)
        if self._standing is not None:
            self._standing.require(certificate)
        return self._policy.admit(method, caller)

    def _watched(self, context: grpc.aio.ServicerContext) -> "asyncio.Task[None] | None":
        """Cancels the call that runs now, once its caller's certificate stands no longer."""
        call, standing = asyncio.current_task(), self._standing
        if standing is None or call is None:
            return None

        async def end() -> None:
            await standing.until_fallen(certificate_of(context))
            call.cancel()

        return asyncio.create_task(end())

    def _note_refusal(self, method: str, request: Any, context: grpc.aio.ServicerContext, reason: str) -> None:
        if self._trail is None:
            return
        try:
            caller = caller_of(context)
        except (CertificateError, NotAuthorised):
            caller = Caller("unknown", "")
        subject = "" if isinstance(request, _Malformed) else subject_of(request)
        try:
            self._trail.note(caller.role, caller.name, origin(context.peer()), method, subject, reason)
        except StorageFailed as failure:  # nothing was done: the caller is told why all the same
            logger.error("a refusal is missing in the audit trail: %s", failure)

    async def _refuse(self, method: str, request: Any, context: grpc.aio.ServicerContext, error: Exception) -> None:
        if isinstance(error, grpc.aio.AbortError):
            raise error
        refusal = find(self._catalogue, error)
        self._note_refusal(method, request, context, "INTERNAL" if refusal is None else refusal.reason)
        metrics.REFUSALS.labels(method, "INTERNAL" if refusal is None else refusal.reason).inc()
        if refusal is not None:
            # An error that quotes values says what of it may be written down.
            logger.info("%s refused: %s: %s", method, refusal.reason, getattr(error, "without_values", error))
            named = Refusal(refusal.status, getattr(error, "reason", None) or refusal.reason)
            await abort(context, named, refusal.public or str(error))
        logger.error("%s failed", method, exc_info=error)
        internal = Refusal("INTERNAL", "INTERNAL")
        await abort(context, internal, "an internal error; its detail is in this service's log")


def _refuse_malformed(request: Any) -> None:
    """Refuse before the method begins; in a stream of requests, whoever reads one refuses it."""
    if isinstance(request, _Malformed):
        raise MessageInvalid(NO_MESSAGE)


def _counting_decoder(method: str, decode: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    bytes_of, received = metrics.SERVED_BYTES.counts, (method, metrics.RECEIVED)

    def decoded(data: bytes) -> Any:
        bytes_of[received] += len(data)
        try:
            return decode(data)
        except DecodeError:
            return _Malformed()

    return decoded


def _counting_encoder(method: str, encode: Callable[[Any], bytes]) -> Callable[[Any], bytes]:
    bytes_of, sent = metrics.SERVED_BYTES.counts, (method, metrics.SENT)

    def encoded(message: Any) -> bytes:
        data = encode(message)
        bytes_of[sent] += len(data)
        return data

    return encoded
