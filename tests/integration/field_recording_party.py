"""A party that notes every field of every message that it gets or gives: the product's own service, watched.

Names are appended to the file in the environment variable FIELDS, with the process id behind it; whoever removes the
file begins a new list.
"""
# ruff: noqa: N802 (gRPC spells method names)

import os
from pathlib import Path

import parley.services.party.__main__ as service
from parley.services.party import servicer
from parley.services.wire.process import run

_file = Path(f"{os.environ['FIELDS']}.{os.getpid()}")
_noted: set[str] = set()


def note(message):
    """Write down the names of fields that are set, in the message and in all that it holds."""
    if not _file.exists():
        _noted.clear()
        _file.touch()
    for field, value in message.ListFields():
        if field.full_name not in _noted:
            _noted.add(field.full_name)
            with _file.open("a") as file:
                file.write(field.full_name + "\n")
        if field.message_type is not None:
            for inner in value if field.is_repeated else [value]:
                note(inner)
    return message


async def _noting(messages):
    async for message in messages:
        yield note(message)


class WatchedParty(servicer.PartyServicer):
    async def OpenSession(self, request, context):
        return note(await super().OpenSession(note(request), context))

    async def BeginSession(self, request, context):
        return note(await super().BeginSession(note(request), context))

    async def Exchange(self, request_iterator, context):
        async for answer in super().Exchange(_noting(request_iterator), context):
            yield note(answer)


class WatchedPeer(servicer.PeerServicer):
    async def Push(self, request_iterator, context):
        return await super().Push(_noting(request_iterator), context)


if __name__ == "__main__":
    vars(service).update(PartyServicer=WatchedParty, PeerServicer=WatchedPeer)
    run(service.main, __doc__)
