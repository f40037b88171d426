import asyncio
import os

import pytest

from parley.services.wire.tunnels import Endpoint, SocketPathTooLong, SocketSide, socket_address, splice


class Memory:
    """A side in memory: what it is given to read, and what is written to it."""

    def __init__(self):
        self.incoming, self.written = asyncio.Queue(), []
        self.room = asyncio.Event()
        self.room.set()

    async def read(self):
        return await self.incoming.get()

    async def write(self, data):
        await self.room.wait()
        self.written.append(data)


async def dial(endpoint):
    return SocketSide(*await asyncio.open_unix_connection(endpoint.address.removeprefix("unix:")))


async def until(condition):
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 (of other code, which sets no event)
            await asyncio.sleep(0)


async def test_spliced_sides_get_each_others_bytes_in_order_until_one_ends():
    one, other = Memory(), Memory()
    for data in (b"a", b"b", b"c"):
        one.incoming.put_nowait(data)
    other.incoming.put_nowait(b"x")
    passing = asyncio.create_task(splice(one, other))
    await until(lambda: other.written == [b"a", b"b", b"c"] and one.written == [b"x"])
    one.incoming.put_nowait(b"")
    await asyncio.wait_for(passing, 10)


async def test_a_side_that_takes_nothing_holds_up_whoever_writes_to_it():
    one, other = Memory(), Memory()
    other.room.clear()
    for _ in range(5):
        one.incoming.put_nowait(b"data")
    passing = asyncio.create_task(splice(one, other))
    await asyncio.sleep(0.05)
    assert one.incoming.qsize() == 4, "one piece is held, and no more is read"
    passing.cancel()
    await asyncio.gather(passing, return_exceptions=True)


async def test_a_side_that_breaks_ends_the_connection_and_is_no_error():
    one, other = Memory(), Memory()

    async def broken():
        raise ConnectionResetError

    one.read = broken
    await asyncio.wait_for(splice(one, other), 10)


async def test_a_mistake_in_a_side_is_not_swallowed():
    one, other = Memory(), Memory()

    async def wrong():
        raise ZeroDivisionError

    one.read = wrong
    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(splice(one, other), 10)


async def test_an_endpoint_stands_for_what_it_hands_on_to(tmp_path):
    far = []

    async def hand_on(side):
        far.append(Memory())
        await splice(side, far[-1])

    endpoint = Endpoint(tmp_path / "sockets" / "bank", hand_on)
    near = await dial(endpoint)
    payload = os.urandom(3_000_000)
    await near.write(payload)
    await until(lambda: far and sum(map(len, far[0].written)) == len(payload))
    assert b"".join(far[0].written) == payload
    far[0].incoming.put_nowait(b"answer")
    assert await near.read() == b"answer"
    await endpoint.close()
    assert await near.read() == b""
    assert not (tmp_path / "sockets" / "bank").exists()


async def test_an_endpoint_takes_the_place_of_one_that_was_killed(tmp_path):
    async def echo(side):
        await side.write(await side.read())

    (tmp_path / "bank").touch()
    endpoint = Endpoint(tmp_path / "bank", echo)
    near = await dial(endpoint)
    await near.write(b"hello")
    assert await near.read() == b"hello"
    await near.close()
    await endpoint.close()


def test_a_path_that_no_system_takes_is_refused_with_what_to_change(tmp_path):
    with pytest.raises(SocketPathTooLong, match="shorter `state`"):
        socket_address(tmp_path / ("x" * 120))
