"""A party of the protocol before, from before protocols were told: it takes no other version of Parley than its own."""

import parley.services.wire.version as versions

versions.PROTOCOLS = versions.PROTOCOLS[:-1]

from parley.services.party import servicer  # noqa: E402 (what is spoken is read when modules are imported)
from parley.services.party.__main__ import main  # noqa: E402
from parley.services.party.versions import VersionMismatch  # noqa: E402
from parley.services.wire.process import run  # noqa: E402

_describe, _open = servicer.PartyServicer.Describe, servicer.PartyServicer.OpenSession


async def describe(self, request, context):
    answer = await _describe(self, request, context)
    answer.ClearField("protocols")
    return answer


async def open_session(self, request, context):
    if request.version != versions.VERSION:
        raise VersionMismatch("install the same version on both sides")
    request.ClearField("protocol")  # which it does not know
    return await _open(self, request, context)


servicer.PartyServicer.Describe, servicer.PartyServicer.OpenSession = describe, open_session

if __name__ == "__main__":
    run(main, __doc__)
