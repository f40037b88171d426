"""Well-formed messages from every role against running services: each is answered or refused by name, without trace."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message

from contracts.aggregation.v1 import aggregation_pb2
from contracts.bambi.v1 import bambi_pb2
from contracts.coordinator.v1 import coordinator_service_pb2
from contracts.party.v1 import party_service_pb2 as party_pb
from contracts.peer.v1 import peer_service_pb2 as peer_pb
from contracts.run.v1 import run_service_pb2 as run_pb
from contracts.tensor.v1 import tensor_pb2
from services.wire.certificates import load_identity
from services.wire.refusals import reason_of
from services.wire.transport import channel_credentials, channel_options
from services.wire.version import VERSION
from tests.faults.harness import (
    BAMBI_CASES,
    CASES,
    PARTIES,
    DisturbableFederation,
    make_federation,
    remains_of,
    spec_of,
    wait_for_end,
)
from tests.faults.mutation import mutated, random_message
from tests.faults.specs import mutated_spec
from tests.faults.tally import Tally

UNNAMED = {"INTERNAL", "UNKNOWN"}
WITHOUT_REASON = {"UNAVAILABLE", "CANCELLED", "DEADLINE_EXCEEDED", "UNIMPLEMENTED"}
PER_SESSION = 40
"""Messages between two fresh sessions."""
SERVICES = {
    "bank": (
        party_pb.DESCRIPTOR.services_by_name["PartyService"],
        peer_pb.DESCRIPTOR.services_by_name["PeerService"],
    ),
    "coordinator": (
        run_pb.DESCRIPTOR.services_by_name["RunService"],
        coordinator_service_pb2.DESCRIPTOR.services_by_name["CoordinatorService"],
    ),
}
ROLE_OF = {"PartyService": "coordinator", "PeerService": "shop", "RunService": "client", "CoordinatorService": "shop"}


def fuzz_campaign(directory: Path, messages: int, seed: int) -> Tally:
    """Send `messages` random or changed messages; then nothing may have changed, and a run still completes."""
    tally = Tally("service fuzzing")
    with make_federation(directory / "federation", directory / "data") as federation, federation.connect() as client:
        control = client.start(spec_of("implicit, pairwise, once"), "control")
        wait_for_end(client, control.run_id)
        before = remains_of(federation, client, control.run_id)
        known = {run.run_id for run in client.runs()}
        pids = {name: process.pid for name, process in federation.processes.items()}
        fuzzer = Fuzzer(federation, random.Random(seed), control.run_id, tally)
        with fuzzer.channels():
            for number in range(messages):
                if number % PER_SESSION == 0:
                    fuzzer.renew_session()
                fuzzer.send(number)
            fuzzer.close_session()
        for name, process in federation.processes.items():
            if process.poll() is not None or process.pid != pids[name]:
                tally.fail(f"{name} ended")
        if remains_of(federation, client, control.run_id) != before:
            tally.fail("the run that was there before has changed")
        strangers = {run.run_id for run in client.runs()} - known - fuzzer.started
        if strangers:
            tally.fail(f"refused calls left runs behind: {strangers}")
        again = client.start(spec_of("zeroth order, two trees, per step"), "afterwards")
        if wait_for_end(client, again.run_id).state != "COMPLETED":
            tally.fail("a run after the campaign does not complete")
    return tally


@dataclass
class Fuzzer:
    """Sends one wrong message after another."""

    federation: DisturbableFederation
    chance: random.Random
    run_id: str
    tally: Tally
    started: set[str] = field(default_factory=set)
    _channels: dict[tuple[str, str], grpc.Channel] = field(default_factory=dict)
    _open: party_pb.OpenSessionRequest = field(default_factory=party_pb.OpenSessionRequest)
    _begin: party_pb.BeginSessionRequest = field(default_factory=party_pb.BeginSessionRequest)

    def channels(self) -> "Fuzzer":
        """Use as a context: channels are closed at its end."""
        return self

    def __enter__(self) -> "Fuzzer":
        return self

    def __exit__(self, *_: Any) -> None:
        for channel in self._channels.values():
            channel.close()

    def channel(self, process: str, caller: str) -> grpc.Channel:
        """A channel of a caller to a service."""
        if (process, caller) not in self._channels:
            role = "coordinator" if process == "coordinator" else "party"
            credentials = channel_credentials(load_identity(self.federation.identity(caller)))
            options = channel_options(role, process)
            self._channels[process, caller] = grpc.secure_channel(
                self.federation.addresses[process], credentials, options=options
            )
        return self._channels[process, caller]

    def renew_session(self) -> None:
        """Open a session at every party, and begin it at some, as a coordinator would."""
        self.close_session()
        session = f"fuzz-{self.chance.getrandbits(60)}"
        case = self.chance.choice(BAMBI_CASES)
        self._open = party_pb.OpenSessionRequest(
            run_id="fuzzed", session_id=session, spec_yaml=spec_of(case), version=VERSION, purpose=1
        )
        answers = [self._call(name, "OpenSession", self._open) for name in PARTIES]
        self._begin = party_pb.BeginSessionRequest(
            session_id=session,
            keys=[answer.key for answer in answers],
            upper_sizes=[answer.upper_size for answer in answers],
            peer_addresses=[proxy.address for proxy in self.federation.proxies.values()],
            outputs=10,
        )
        for name in PARTIES:
            if self.chance.random() < 0.7:
                self._call(name, "BeginSession", self._begin)

    def close_session(self) -> None:
        """Let every party forget the session."""
        for name in PARTIES if self._open.session_id else ():
            self._call(name, "CloseSession", party_pb.CloseSessionRequest(session_id=self._open.session_id))

    def _call(self, party: str, method: str, request: Message) -> Any:
        descriptor = SERVICES["bank"][0].methods_by_name[method]
        kind = descriptor.output_type._concrete_class
        path = f"/{SERVICES['bank'][0].full_name}/{method}"
        call = self.channel(party, "coordinator").unary_unary(
            path, request_serializer=lambda message: message.SerializeToString(), response_deserializer=kind.FromString
        )
        return call(request, timeout=60)

    def send(self, number: int) -> None:
        """One message of any method, mostly from the role that may call it."""
        process = self.chance.choice(list(SERVICES))
        service = self.chance.choice(SERVICES[process])
        method = self.chance.choice(list(service.methods))
        caller = ROLE_OF[service.name]
        if self.chance.random() < 0.05:
            caller = self.chance.choice(["client", "coordinator", "shop"])
        right = self._right_message(method.name)
        messages = [mutated(one, self.chance) if self.chance.random() < 0.8 else one for one in right]
        if self.chance.random() < 0.15:
            messages.append(random_message(method.input_type._concrete_class, self.chance))
        if method.name in ("StartRun", "CheckSpec"):
            for message in messages:
                if self.chance.random() < 0.9:
                    message.spec_yaml = mutated_spec(spec_of(self.chance.choice(list(CASES))), self.chance)
        status, reason, answers = self._outcome(process, service, method, caller, messages)
        self.tally.count("messages", len(messages))
        self.tally.count("answered" if status == "OK" else "refused")
        if status in UNNAMED or (status != "OK" and reason is None and status not in WITHOUT_REASON):
            said = "; ".join(repr(str(message))[:300] for message in messages)
            self.tally.fail(f"message {number}: {method.name} by {caller}: {status} {reason}: {said}")
        if method.name == "StartRun" and status == "OK":
            self._stop(answers[0].run.run_id)
        if method.name == "ResumeRun" and status == "OK":
            self._stop(answers[0].run.run_id)

    def _stop(self, run_id: str) -> None:
        self.started.add(run_id)
        service = SERVICES["coordinator"][0]
        request = run_pb.CancelRunRequest(run_id=run_id)
        self._outcome("coordinator", service, service.methods_by_name["CancelRun"], "client", [request])

    def _outcome(
        self, process: str, service: Any, method: Any, caller: str, messages: list[Message]
    ) -> tuple[str, str | None, list[Any]]:
        sort = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
        call: Callable[..., Any] = getattr(self.channel(process, caller), sort)(
            f"/{service.full_name}/{method.name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=method.output_type._concrete_class.FromString,
        )
        requests: Iterator[Message] | Message = iter(messages) if method.client_streaming else messages[0]
        try:
            answer = call(requests, timeout=60)
            answers = list(answer) if method.server_streaming else [answer]
        except grpc.RpcError as error:
            return error.code().name, reason_of(error), []
        return "OK", None, answers

    def _right_message(self, method: str) -> list[Message]:
        """A message (or a stream) that the method would take."""
        session = self._open.session_id
        match method:
            case "OpenSession":
                request = party_pb.OpenSessionRequest()
                request.CopyFrom(self._open)
                request.run_id = "fuzzed-too"
                request.session_id = self._open.session_id if self.chance.random() < 0.2 else "fuzz-other"
                return [request]
            case "BeginSession":
                return [self._begin]
            case "CloseSession":
                return [party_pb.CloseSessionRequest(session_id="fuzz-other")]
            case "Exchange":
                attach = party_pb.ExchangeRequest(attach=party_pb.Attach(session_id=session))
                return [attach, *(party_pb.ExchangeRequest(bambi=one) for one in self._instructions())]
            case "Push":
                part = aggregation_pb2.MaskedTheta(tree=1, round=1, elements=_tensor(64), participants=2)  # type: ignore[arg-type]
                return [
                    peer_pb.PushRequest(attach=peer_pb.Attach(session_id=session)),
                    peer_pb.PushRequest(masked_theta=part),
                ]
            case "StartRun":
                return [run_pb.StartRunRequest(request_id=f"r-{self.chance.getrandbits(60)}", spec_yaml="name: x")]
            case "WatchRun" | "GetRun" | "CancelRun" | "ResumeRun" | "Predict" | "GetLedger":
                kind = getattr(run_pb, f"{method}Request")
                return [kind(run_id=self.run_id)]
            case "AskSlopes":
                question = coordinator_service_pb2.SlopesQuestion(session_id=session, opened_theta=_tensor(8))
                return [coordinator_service_pb2.AskSlopesRequest(question=question)]
        service = next(s for pair in SERVICES.values() for s in pair if method in s.methods_by_name)
        return [service.methods_by_name[method].input_type._concrete_class()]

    def _instructions(self) -> list[bambi_pb2.Instruction]:
        asks: list[dict[str, Any]] = [
            {"lower_forward": bambi_pb2.LowerForward(k=1, t=0)},
            {"upper_forward": bambi_pb2.UpperForward(k=1)},
            {"rows_forward": bambi_pb2.RowsForward(rows=3, first=0, count=5)},  # type: ignore[arg-type]
            {"checkpoint": bambi_pb2.Checkpoint(k=1)},
        ]
        count = self.chance.choice((1, 1, 2, 3))
        return [bambi_pb2.Instruction(round=number + 1, **self.chance.choice(asks)) for number in range(count)]


def _tensor(size: int) -> tensor_pb2.Tensor:
    return tensor_pb2.Tensor(element_type=4, shape=[size], data=bytes(8 * size))  # type: ignore[arg-type]
