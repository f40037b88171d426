"""Whose certificate a call is judged by, when many are answered at once."""

import asyncio

import grpc
import pytest

from parley.services.wire.authorisation import NotAuthorised, Policy, caller_of, certificate_of, keep_certificate
from parley.services.wire.certificates import create_authority, issue
from parley.services.wire.refusals import BoundaryInterceptor
from parley.services.wire.revocation import Standing
from parley.services.wire.transport import listen, make_server, open_channel


class Call:
    """A call of somebody who showed a certificate; counts how often gRPC is asked for it."""

    def __init__(self, *certificates: bytes) -> None:
        self.certificates, self.asked = certificates, 0

    def auth_context(self):
        self.asked += 1
        return {"x509_pem_cert": self.certificates} if self.certificates else {}


def test_a_kept_certificate_is_read_once_and_serves_its_own_call_only():
    ann, ben = Call(b"ann"), Call(b"ben")
    assert keep_certificate(ann) == b"ann"
    assert [certificate_of(ann) for _ in range(3)] == [b"ann"] * 3
    assert ann.asked == 1
    assert certificate_of(ben) == b"ben"  # while ann's is the one that is kept
    assert keep_certificate(ben) == b"ben"
    assert (certificate_of(ann), certificate_of(ben)) == (b"ann", b"ben")


def test_a_call_without_a_certificate_does_not_get_the_one_that_was_kept():
    keep_certificate(Call(b"ann"))
    for read in (certificate_of, keep_certificate):
        with pytest.raises(NotAuthorised, match="showed no certificate"):
            read(Call())


async def test_what_one_call_keeps_is_not_seen_by_calls_beside_it_and_is_seen_by_its_own_tasks():
    calls = [Call(f"caller {number}".encode()) for number in range(4)]
    inside = asyncio.Barrier(len(calls))

    async def answered(call: Call) -> tuple[bytes, ...]:
        keep_certificate(call)
        await inside.wait()  # every call has kept its own by now

        async def watch() -> bytes:
            return certificate_of(call)

        return certificate_of(call), await asyncio.create_task(watch()), *map(certificate_of, calls)

    own = [call.certificates[0] for call in calls]
    for call, (mine, watched, *everyone) in zip(calls, await asyncio.gather(*map(answered, calls)), strict=True):
        assert mine == watched == call.certificates[0]
        assert everyone == own


async def test_callers_who_are_answered_at_the_same_time_are_told_apart(tmp_path):
    authority = create_authority(tmp_path / "authority", "federation").parent
    folder = issue(authority, "bank", "party", ["localhost"])
    names = ("ann", "ben", "cem")
    clients = {name: issue(authority, name, "client", ["localhost"]) for name in names}
    inside = asyncio.Barrier(len(names))

    async def who(_request, context):
        before = caller_of(context).name
        await inside.wait()
        return f"{before} {caller_of(context).name}".encode()

    server = make_server(BoundaryInterceptor(Policy({"/a.B/C": frozenset({"client"})}), {}, Standing(folder)))
    handler = grpc.unary_unary_rpc_method_handler(who, bytes, bytes)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("a.B", {"C": handler})])
    port = listen(server, "127.0.0.1:0", folder)
    await server.start()

    async def ask(name: str) -> list[bytes]:
        async with open_channel(f"127.0.0.1:{port}", clients[name], "party", "bank") as channel:
            return [await channel.unary_unary("/a.B/C")(b"", timeout=20) for _ in range(5)]

    told = await asyncio.gather(*map(ask, names))
    await server.stop(0)
    assert told == [[f"{name} {name}".encode()] * 5 for name in names]
