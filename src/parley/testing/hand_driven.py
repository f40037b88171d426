"""A session with every party, driven by hand: any message at any time, right or wrong."""

import secrets
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from parley.contracts.party.v1 import party_service_pb2 as pb
from parley.contracts.peer.v1 import peer_service_pb2 as peer_pb
from parley.local import LocalFederation
from parley.services.wire.certificates import load_identity
from parley.services.wire.refusals import reason_of
from parley.services.wire.transport import channel_credentials, channel_options
from parley.testing.recordings import BEGIN, EXCHANGE, OPEN, PUSH, Framed, methods

CLOSE = "/parley.party.v1.PartyService/CloseSession"
CALL_SECONDS = 60.0


@dataclass(frozen=True)
class Outcome:
    """How a call ended, and what it answered before."""

    answers: tuple[Any, ...]
    status: str = "OK"
    reason: str | None = None
    """The named reason of a refusal."""

    @property
    def is_named(self) -> bool:
        """Whether it was answered, or refused by a reason of the service's own."""
        return self.status == "OK" or self.reason not in (None, "INTERNAL")


class HandDrivenSession:
    """A session of a recorded run, at every party, begun anew."""

    def __init__(
        self, federation: LocalFederation, opening: pb.OpenSessionRequest, beginning: pb.BeginSessionRequest
    ) -> None:
        """`opening` and `beginning` are those of the recorded run; `opening.run_id` may be another."""
        self._federation, self._channels = federation, dict[tuple[str, str], grpc.Channel]()
        self.parties = [name for name in federation.tables if name in _names(beginning)]
        self._receipts: dict[str, Any] = {}
        """What the parties gave for the last checkpoint."""
        self.session_id = f"by-hand-{secrets.token_hex(8)}"
        opening, begin = _copy(opening), _copy(beginning)
        opening.session_id = begin.session_id = self.session_id
        opened = {name: self._ask(name, OPEN, opening) for name in _names(beginning)}
        del begin.keys[:]
        begin.keys.extend(answer.key for answer in opened.values())
        begin.checkpoint = 0
        self._threads = ThreadPoolExecutor(len(opened))
        for name in opened:
            self._ask(name, BEGIN, begin)

    def send(self, messages: Mapping[str, Sequence[Message]], seconds: float = CALL_SECONDS) -> dict[str, Outcome]:
        """Send parties each an instruction in its envelopes, on new streams and at once; how each answered."""
        attach = pb.ExchangeRequest(attach=pb.Attach(session_id=self.session_id))
        calls = {
            party: self._threads.submit(self._call, party, "coordinator", EXCHANGE, [attach, *envelopes], seconds)
            for party, envelopes in messages.items()
        }
        outcomes = {party: call.result() for party, call in calls.items()}
        given = {
            party: answer.receipt
            for party, outcome in outcomes.items()
            for answer in outcome.answers
            if answer.HasField("receipt")
        }
        self._receipts = given or self._receipts
        return outcomes

    def replay(self, round_: Sequence[Framed]) -> dict[str, Outcome]:
        """Send a recorded round as it was, but for receipts: those are of this session."""
        return self.send({framed.receiver: self.with_own_receipts(framed.envelopes) for framed in round_})

    def with_own_receipts(self, envelopes: Sequence[Any]) -> Sequence[Any]:
        """A recorded instruction with the receipts that the parties of this session gave, where it had any."""
        if not envelopes[0].receipts:
            return envelopes
        first = _copy(envelopes[0])
        del first.receipts[:]
        first.receipts.extend(self._receipts.values())
        return [first, *envelopes[1:]]

    def push(self, framed: Framed, seconds: float) -> Outcome:
        """Send a party what another one pushed to it."""
        attach = peer_pb.PushRequest(attach=peer_pb.Attach(session_id=self.session_id))
        return self._call(framed.receiver, framed.sender, PUSH, [attach, *framed.envelopes], seconds)

    def close(self) -> None:
        """Let every party forget the session."""
        for party in self.parties:
            self._ask(party, CLOSE, pb.CloseSessionRequest(session_id=self.session_id))
        self._threads.shutdown()
        for channel in self._channels.values():
            channel.close()

    def _ask(self, party: str, path: str, request: Message) -> Any:
        outcome = self._call(party, "coordinator", path, [request], CALL_SECONDS)
        assert outcome.status == "OK", f"{party} refused a right {path}: {outcome.status} {outcome.reason}"
        return outcome.answers[0]

    def _call(self, party: str, caller: str, path: str, messages: Sequence[Message], seconds: float) -> Outcome:
        method = methods()[path]
        call = self._channel(party, caller).stream_stream(
            path,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=GetMessageClass(method.output_type).FromString,
        )
        answers: list[Any] = []
        try:
            answers.extend(call(iter(messages), timeout=seconds))
        except grpc.RpcError as error:
            return Outcome(tuple(answers), error.code().name, reason_of(error))
        return Outcome(tuple(answers))

    def _channel(self, party: str, caller: str) -> grpc.Channel:
        if (party, caller) not in self._channels:
            credentials = channel_credentials(load_identity(self._federation.identity(caller)))
            self._channels[party, caller] = grpc.secure_channel(
                self._federation.addresses[party], credentials, options=channel_options("party", party)
            )
        return self._channels[party, caller]


def _names(beginning: pb.BeginSessionRequest) -> list[str]:
    """The run's parties, in the order of their blocks."""
    return [key.party for key in beginning.keys]


def _copy(message: Any) -> Any:
    copy = type(message)()
    copy.CopyFrom(message)
    return copy
