"""Rounds that go on without a lost party: the coordinator's side of `parley.privacy.recovery`.

A party that is lost, or does not answer by the deadline, has left: it is asked for nothing more in this session. Where
fewer parties are left than a sum needs, the loss is raised as in a run without recovery, and the run goes back to its
last checkpoint.
"""

import asyncio
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from google.protobuf.message import Message

from parley.coordinator.programs import RecoverableProgram
from parley.privacy.aggregation import SumOpening, SurvivorsSum
from parley.privacy.dropout import RoundKeys
from parley.privacy.recovery import AskDisclosure, AskKey, AskShares, AskValues, RecoveryStep, ShareBundle
from parley.privacy.release import ClearRelayGate, members
from parley.protocols.protocol import RecoveryCodec, SettledSum
from parley.protocols.recovery.codec import common_digest, encode_step
from parley.protocols.rounds import RecoverableRound
from parley.protocols.tensor.codec import Blobs
from parley.services.coordinator.fleet import PartyLost, PartyRefused
from parley.services.coordinator.streams import Read
from parley.spec.run import RunSpec

SumName = tuple[str, int]
"""Phase and round."""


class SettledOtherwise(ValueError):
    """Parties disagree about a sum of an earlier attempt."""


class PartyStreams(Protocol):
    """A session's streams, as far as a round needs them."""

    def next_number(self) -> int:
        """A number for the next round trip."""

    async def ask(self, messages: Mapping[int, Message], blobs: Blobs, read: Read) -> Mapping[int, Any]:
        """One round trip with some parties: their answers, or how they were lost. Refusals are raised."""

    def end_stream(self, party: int) -> None:
        """End the stream of a party."""


@dataclass
class RecoverableRounds:
    """The rounds of one session: who has left, and whose round key is at hand."""

    streams: PartyStreams
    program: RecoverableProgram
    codec: RecoveryCodec
    opening: SumOpening
    spec: RunSpec
    session_id: str
    settled: Mapping[SumName, tuple[int, ...]] = field(default_factory=dict)
    """Sums that an earlier attempt may have opened; they may be made again over the same parties only."""
    left: dict[int, PartyLost] = field(default_factory=dict)
    _keys: dict[int, bytes] = field(default_factory=dict)
    _sums: int = 0
    _relay: ClearRelayGate = field(default_factory=ClearRelayGate)

    async def exchange(self, asked: RecoverableRound) -> SurvivorsSum | None:
        """One phase with those who have not left; None where there is nothing to sum."""
        if asked.answer != "sum":
            present = self._enough(asked)
            await self._ask(asked.among(present), dict.fromkeys(present))
            self._enough(asked)
            return None
        again = self.settled.get((asked.phase, asked.k))
        asked = asked if again is None else asked.among(again)
        keys, bundles = await self._share(asked)
        asked = asked.among(tuple(sorted(keys.participants)))
        addends = await self._ask(asked, {party: _values(keys.round_id, party, bundles) for party in bundles})
        if len(addends) < (keys.threshold if again is None else len(again)):
            raise self._last_lost
        survivors = frozenset(addends)
        bare = asked.bare().among(tuple(sorted(survivors)))
        settled = await self._ask(bare, dict.fromkeys(survivors, AskDisclosure(keys.round_id, survivors)))
        if len(settled) < keys.threshold:
            raise self._last_lost
        self._keys |= {party: answer.next_key for party, answer in settled.items()}
        disclosures = [answer.disclosure for answer in settled.values()]
        total = await asyncio.to_thread(self.opening.open_survivors, addends, disclosures, keys)
        return SurvivorsSum(total, len(addends))

    async def _share(self, asked: RecoverableRound) -> tuple[RoundKeys, Mapping[int, ShareBundle]]:
        """Round keys and sealed shares of everyone who is left; begins again if somebody is lost meanwhile."""
        bare = asked.bare()
        while True:
            present = self._enough(asked)
            keyless = [party for party in present if party not in self._keys]
            if keyless:
                offers = await self._ask(bare.among(present), dict.fromkeys(keyless, AskKey()))
                self._keys |= {party: offer.public_key for party, offer in offers.items()}
                present = self._enough(asked)
            self._sums += 1
            names = {party: self.spec.parties[party].name for party in present}
            public_keys = {party: self._keys.pop(party) for party in present}
            keys = RoundKeys(self.session_id, 0, self._sums, self._needed(len(present)), names, public_keys)
            step = AskShares(self._sums, public_keys, self._digest(asked.among(present)))
            bundles = await self._ask(bare.among(present), dict.fromkeys(present, step))
            if len(bundles) == len(present):
                self._check_bundles(bundles)
                return keys, bundles

    def _digest(self, asked: RecoverableRound) -> bytes:
        """What the instruction that will ask for values says to all participants: their shares are sealed to it."""
        return common_digest(*self.program.encode(0, self.program.gate.release(asked)))

    async def _ask(self, asked: RecoverableRound, steps: Mapping[int, RecoveryStep | None]) -> dict[int, Any]:
        """One round trip with the parties of `steps`; the answers of those who are not lost by it."""
        release = self.program.gate.release(asked)
        instruction, blobs = self.program.encode(self.streams.next_number(), release)
        messages = {party: _with_step(instruction, self._relay, step) for party, step in steps.items()}

        def read(party: int, message: Any, parts: Blobs) -> Any:
            step = steps[party]
            if step is None or isinstance(step, AskValues):
                return self.program.decode(message, parts, release)
            return self.codec.decode_step(message, step, party)

        found = await self.streams.ask(messages, blobs, read)
        for party, answer in found.items():
            if isinstance(answer, PartyLost):
                self.left[party] = answer
                self.streams.end_stream(party)
        return {party: answer for party, answer in found.items() if party not in self.left}

    def _enough(self, asked: RecoverableRound) -> tuple[int, ...]:
        """The participants who are left, if a sum over them could be opened."""
        named = asked.participants or ()
        present = tuple(party for party in named if party not in self.left)
        again = asked.answer == "sum" and (asked.phase, asked.k) in self.settled
        if len(present) < (len(named) if again else self._needed(len(present))):
            raise self._last_lost
        return present

    def _needed(self, participants: int) -> int:
        return self.spec.privacy.aggregation.needed(self.spec.sampled, participants)

    @property
    def _last_lost(self) -> PartyLost:
        return list(self.left.values())[-1]

    def _check_bundles(self, bundles: Mapping[int, ShareBundle]) -> None:
        for party, bundle in bundles.items():
            if bundle.sealed.keys() != bundles.keys() - {party}:
                name = self.spec.parties[party].name
                raise PartyRefused(name, "MESSAGE_INVALID", "its shares are not for the participants of the sum")


def merge_settled(reports: Iterable[Iterable[SettledSum]]) -> dict[SumName, int]:
    """What the parties report of sums that were opened before; those that know of a sum must agree."""
    found: dict[SumName, int] = {}
    for phase, k, participants in itertools.chain.from_iterable(reports):
        if found.setdefault((phase, k), participants) != participants:
            both = [list(members(bits)) for bits in (found[phase, k], participants)]
            raise SettledOtherwise(
                f"parties say that the {phase} phase of round {k} was summed over {both[0]} and over {both[1]}: it "
                "cannot be made again; start a new run"
            )
    return found


def members_of(settled: Mapping[SumName, int]) -> dict[SumName, tuple[int, ...]]:
    """The same by party instead of by bit."""
    return {name: members(participants) for name, participants in settled.items()}


def _values(sum_id: int, party: int, bundles: Mapping[int, ShareBundle]) -> AskValues:
    return AskValues(sum_id, {owner: bundle.sealed[party] for owner, bundle in bundles.items() if owner != party})


def _with_step(instruction: Any, relay: ClearRelayGate, step: RecoveryStep | None) -> Any:
    if step is None:
        return instruction
    message = type(instruction)()
    message.CopyFrom(instruction)
    message.recovery.CopyFrom(encode_step(relay.release(step)))
    return message
