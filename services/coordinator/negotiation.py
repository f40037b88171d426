"""Which version of the protocol a session is held in: the highest that the coordinator and all its parties speak."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from parley.contracts.party.v1 import party_service_pb2 as pb
from parley.services.coordinator.fleet import Fleet, PartyRefused, call
from parley.services.wire import version
from parley.services.wire.version import Side, common_protocol, mismatch


class ProtocolsDiffer(PartyRefused):
    """No protocol is spoken by everyone; somebody has to upgrade."""

    def __init__(self, party: str, message: str) -> None:
        super().__init__(party, "VERSION_MISMATCH", message)
        self.args = (message,)


@dataclass(frozen=True)
class Negotiated:
    """What a session is held in."""

    protocol: int
    versions: Mapping[str, str]
    """The version that each party is given as the coordinator's."""


def own_side() -> Side:
    """The coordinator."""
    return Side("the coordinator", version.VERSION, version.PROTOCOLS)


async def negotiate(fleet: Fleet, parties: Sequence[str]) -> Negotiated:
    """Ask every party what it speaks, and take the highest protocol in common.

    Raises:
        ProtocolsDiffer: if there is none, with who speaks what and who has to upgrade.
        PartyLost: if a party does not answer.
    """

    async def ask(party: str) -> pb.DescribeResponse:
        return await call(party, lambda: fleet.stub(party).Describe(pb.DescribeRequest(brief=True)))

    answers = dict(zip(parties, await asyncio.gather(*map(ask, parties)), strict=True))
    sides = {name: side_of(name, answer) for name, answer in answers.items()}
    everyone = [own_side(), *sides.values()]
    protocol = common_protocol(everyone)
    if not protocol:
        oldest = min(sides.values(), key=lambda side: side.newest)
        raise ProtocolsDiffer(oldest.name, mismatch(everyone))
    # A party that tells no protocols takes no other version than its own, and speaks as that version does.
    told = {name: version.VERSION if answer.protocols else answer.version for name, answer in answers.items()}
    return Negotiated(protocol, told)


def side_of(party: str, answer: pb.DescribeResponse) -> Side:
    """A party, by what it says of itself."""
    return Side.of(party, answer.version, answer.protocols)


def standing(party: str, answer: pb.DescribeResponse) -> tuple[int, str]:
    """The protocol that a party and the coordinator would speak, and what is wrong if there is none."""
    sides = [own_side(), side_of(party, answer)]
    protocol = common_protocol(sides)
    return protocol, "" if protocol else mismatch(sides)
