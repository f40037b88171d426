"""Who may call what. Identity is the certificate; a method that the table does not name is refused."""

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache

import grpc

from parley.services.wire.certificates import peer_identity

ANY_ROLE = frozenset({"client", "party", "coordinator"})
HEALTH = {f"/grpc.health.v1.Health/{name}": ANY_ROLE for name in ("Check", "Watch", "List")}
REFLECTION = {
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": ANY_ROLE,
    "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo": ANY_ROLE,
}


_shown: ContextVar[tuple[object, bytes]] = ContextVar("_shown", default=(None, b""))
"""The call that is being answered, and its caller's certificate."""


class NotAuthorised(PermissionError):
    """The caller's role may not do this."""


@dataclass(frozen=True)
class Caller:
    """Who calls, as the certificate says."""

    role: str
    name: str


@dataclass(frozen=True)
class Policy:
    """For each method the roles that may call it."""

    methods: Mapping[str, frozenset[str]]

    def admit(self, method: str, caller: Caller) -> Caller:
        """Let the caller pass.

        Raises:
            NotAuthorised: if the table does not name the method for the caller's role.
        """
        if caller.role not in self.methods.get(method, frozenset()):
            raise NotAuthorised(
                f"{caller.role} {caller.name} may not call {method}: use a certificate of the right role"
            )
        return caller


def caller_of(context: grpc.aio.ServicerContext) -> Caller:
    """The caller of a request, from its certificate."""
    return _caller(certificate_of(context))


def certificate_of(context: grpc.aio.ServicerContext) -> bytes:
    """The certificate that the caller of a request showed, PEM."""
    answered, shown = _shown.get()
    return shown if answered is context else _certificate(context)


def keep_certificate(context: grpc.aio.ServicerContext) -> bytes:
    """The same, kept while the call is answered: gRPC copies the whole of a connection's identity whenever asked."""
    certificate = _certificate(context)
    _shown.set((context, certificate))
    return certificate


def _certificate(context: grpc.aio.ServicerContext) -> bytes:
    certificates = context.auth_context().get("x509_pem_cert")
    if not certificates:
        raise NotAuthorised("the caller showed no certificate: connect with mutual TLS")
    return bytes(certificates[0])


@lru_cache(maxsize=256)
def _caller(certificate: bytes) -> Caller:
    role, name = peer_identity(certificate)
    return Caller(role, name)
