"""Rounds that go on without a lost party: the coordinator's side of `parley.privacy.recovery`.

A party that is lost, or does not answer by the deadline, has left: it is asked for nothing more in this session. Where
fewer parties are left than a sum needs, the loss is told as it is without recovery, and the run goes back to its last
checkpoint.
"""

import asyncio
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from google.protobuf.message import Message

from parley.privacy.aggregation import SumDesk
from parley.privacy.dropout import RoundKeys
from parley.privacy.fedbio_rounds import AveragingRound, Phase, SurvivorsSum
from parley.privacy.recovery import AskDisclosure, AskKey, AskShares, AskValues, RecoveryStep, ShareBundle
from parley.privacy.release import Addend, OutcomeGate, RelayGate, Release
from parley.services.coordinator.fleet import PartyLost, PartyRefused
from parley.services.coordinator.streams import Read
from parley.services.wire.recovery_codec import encode_step
from parley.services.wire.tensors import Blobs
from parley.spec.run import RunSpec


class SettledOtherwise(ValueError):
    """Parties disagree about a sum of an earlier attempt."""


class RecoveringCodec(Protocol):
    """How an algorithm's rounds look on the wire, and the steps of their sums."""

    gate: OutcomeGate

    def encode(self, number: int, release: Release[Any]) -> tuple[Any, Blobs]:
        """The instruction of a round."""

    def decode(self, message: Any, blobs: Blobs, release: Release[Any]) -> Addend | None:
        """A party's contribution to a round, checked."""

    def take_back(self) -> None:
        """Expect parties that were not in the round before: they left in an attempt before this one."""

    def decode_step(self, message: Any, step: RecoveryStep, party: int) -> Any:
        """A party's answer to a step that asks for no value, checked."""


class Line(Protocol):
    """A session's streams, as far as a round needs them."""

    def next_number(self) -> int:
        """A number for the next round trip."""

    async def ask(self, messages: Mapping[int, Message], blobs: Blobs, read: Read) -> Mapping[int, Any]:
        """One round trip with some parties: their answers, or how they were lost. Refusals are raised."""

    def hang_up(self, party: int) -> None:
        """End the stream of a party."""


@dataclass
class RecoverableRounds:
    """The rounds of one session: who has left, and whose round key is at hand."""

    line: Line
    codec: RecoveringCodec
    desk: SumDesk
    spec: RunSpec
    session_id: str
    settled: Mapping[tuple[Phase, int], tuple[int, ...]] = field(default_factory=dict)
    """Sums that an attempt before may have opened: made again, they are over the same parties or not at all."""
    left: dict[int, PartyLost] = field(default_factory=dict)
    _keys: dict[int, bytes] = field(default_factory=dict)
    _sums: int = 0
    _relay: RelayGate = field(default_factory=RelayGate)

    async def exchange(self, asked: AveragingRound) -> SurvivorsSum | None:
        """One phase with those who have not left; None where there is nothing to sum."""
        if not asked.summed:
            present = self._enough(asked)
            await self._ask(replace(asked, participants=present), dict.fromkeys(present))
            self._enough(asked)
            return None
        again = self.settled.get((asked.phase, asked.k))
        asked = asked if again is None else replace(asked, participants=again)
        keys, bundles = await self._share(replace(asked, mean=None))
        asked = replace(asked, participants=tuple(sorted(keys.participants)))
        addends = await self._ask(asked, {party: _values(keys.round_id, party, bundles) for party in bundles})
        if len(addends) < (keys.threshold if again is None else len(again)):
            raise self._last_lost
        survivors = frozenset(addends)
        bare = replace(asked, mean=None, participants=tuple(sorted(survivors)))
        settled = await self._ask(bare, dict.fromkeys(survivors, AskDisclosure(keys.round_id, survivors)))
        if len(settled) < keys.threshold:
            raise self._last_lost
        self._keys |= {party: answer.next_key for party, answer in settled.items()}
        disclosures = [answer.disclosure for answer in settled.values()]
        total = await asyncio.to_thread(self.desk.open_survivors, addends, disclosures, keys)
        return SurvivorsSum(total, len(addends))

    async def _share(self, asked: AveragingRound) -> tuple[RoundKeys, Mapping[int, ShareBundle]]:
        """Round keys of everyone who is left and their sealed shares; who is lost meanwhile is left out."""
        while True:
            present = self._enough(asked)
            keyless = [party for party in present if party not in self._keys]
            if keyless:
                offers = await self._ask(replace(asked, participants=present), dict.fromkeys(keyless, AskKey()))
                self._keys |= {party: offer.public_key for party, offer in offers.items()}
                present = self._enough(asked)
            self._sums += 1
            names = {party: self.spec.parties[party].name for party in present}
            public_keys = {party: self._keys.pop(party) for party in present}
            keys = RoundKeys(self.session_id, 0, self._sums, self._needed(len(present)), names, public_keys)
            step = AskShares(self._sums, public_keys)
            bundles = await self._ask(replace(asked, participants=present), dict.fromkeys(present, step))
            if len(bundles) == len(present):
                self._check_bundles(bundles)
                return keys, bundles

    async def _ask(self, asked: AveragingRound, steps: Mapping[int, RecoveryStep | None]) -> dict[int, Any]:
        """One round trip with the parties of `steps`; the answers of those who are not lost by it."""
        release = self.codec.gate.release(asked)
        instruction, blobs = self.codec.encode(self.line.next_number(), release)
        messages = {party: _with_step(instruction, self._relay, step) for party, step in steps.items()}

        def read(party: int, message: Any, parts: Blobs) -> Any:
            step = steps[party]
            if step is None or isinstance(step, AskValues):
                return self.codec.decode(message, parts, release)
            return self.codec.decode_step(message, step, party)

        found = await self.line.ask(messages, blobs, read)
        for party, answer in found.items():
            if isinstance(answer, PartyLost):
                self.left[party] = answer
                self.line.hang_up(party)
        return {party: answer for party, answer in found.items() if party not in self.left}

    def _enough(self, asked: AveragingRound) -> tuple[int, ...]:
        """The participants who are left, if a sum over them could be opened."""
        present = tuple(party for party in asked.participants if party not in self.left)
        again = asked.summed and (asked.phase, asked.k) in self.settled
        if len(present) < (len(asked.participants) if again else self._needed(len(present))):
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


def merge_settled(
    told: Iterable[Iterable[tuple[Phase, int, tuple[int, ...]]]],
) -> dict[tuple[Phase, int], tuple[int, ...]]:
    """What the parties know of sums that were opened before: of a sum, each tells the same or nothing."""
    found: dict[tuple[Phase, int], tuple[int, ...]] = {}
    for phase, k, participants in itertools.chain.from_iterable(told):
        if found.setdefault((phase, k), participants) != participants:
            raise SettledOtherwise(
                f"parties say that the {phase} phase of round {k} was summed over {list(found[phase, k])} and over "
                f"{list(participants)}: it cannot be made again; start a new run"
            )
    return found


def _values(sum_id: int, party: int, bundles: Mapping[int, ShareBundle]) -> AskValues:
    return AskValues(sum_id, {owner: bundle.sealed[party] for owner, bundle in bundles.items() if owner != party})


def _with_step(instruction: Any, relay: RelayGate, step: RecoveryStep | None) -> Any:
    if step is None:
        return instruction
    message = type(instruction)()
    message.CopyFrom(instruction)
    message.recovery.CopyFrom(encode_step(relay.release(step)))
    return message
