"""Refusals arrive whatever they quote."""

import grpc
import pytest

from parley.protocols.refusals import Refusal
from parley.services.wire.refusals import LONGEST_BYTES, abort, reason_of, shortened


@pytest.mark.parametrize("text", ["x" * 100_000, "é" * 100_000, "\U0001f600" * 5000, "a sentence"])
def test_a_sentence_is_cut_to_what_trailers_hold_and_stays_text(text):
    cut = shortened(text)
    assert len(cut.encode()) <= LONGEST_BYTES + 4
    assert text.startswith(cut.removesuffix(" …"))


@pytest.mark.parametrize("text", ["x" * 100_000, "\U0001f600" * 50_000])
async def test_a_refusal_that_quotes_a_long_text_arrives_with_its_name(text):
    async def refuse(request, context):
        await abort(context, Refusal("NOT_FOUND", "TABLE_UNKNOWN"), f"no table {text!r}")

    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(refuse)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", {"Refuse": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await channel.unary_unary("/test/Refuse")(b"")
    await server.stop(0)
    assert refusal.value.code() is grpc.StatusCode.NOT_FOUND
    assert reason_of(refusal.value) == "TABLE_UNKNOWN"
