"""Well-formed messages from every role against running services: each is answered or refused by name, without trace.

Traces are looked for where they would be. A session that only refused since its last answer repeats that answer, byte
for byte; the number of sessions is what it was; every ledger entry of every run that the campaign did not start itself
is still there, and none is new.
"""

import contextlib
import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message

from parley.contracts.party.v1 import party_service_pb2 as party_pb
from parley.contracts.run.v1 import run_service_pb2 as run_pb
from parley.services.wire.certificates import load_identity
from parley.services.wire.refusals import reason_of
from parley.services.wire.transport import channel_credentials, channel_options
from parley.services.wire.version import VERSION
from parley.testing.mutation import mutated, random_message
from parley.testing.remains import remains_of, wait_for_end
from tests.faults.cases import CASES, PARTIES, spec_of
from tests.faults.harness import DisturbableFederation, make_federation
from tests.faults.served import Known, Served, attach, lower_forward, right_messages, served_methods
from tests.faults.specs import mutated_spec
from tests.faults.tally import Tally

UNNAMED = {"INTERNAL", "UNKNOWN"}
WITHOUT_REASON = {"UNAVAILABLE", "CANCELLED", "DEADLINE_EXCEEDED", "UNIMPLEMENTED"}
PER_SESSION = 40
"""Calls between two fresh sessions."""
CONTROLS = ("implicit, pairwise, once", "ldp-dsbo")
"""Runs that are there before: one with charges at the coordinator, one with charges at every party."""


def fuzz_campaign(directory: Path, messages: int, seed: int) -> Tally:
    """Send `messages` random or changed messages; then nothing may have changed, and a run still completes."""
    tally = Tally("service fuzzing")
    federation = make_federation(directory / "federation", directory / "data")
    with federation, federation.connect() as client:
        controls = [client.start(spec_of(case), f"control {case}") for case in CONTROLS]
        for control in controls:
            wait_for_end(client, control.run_id)
        before = [remains_of(federation, client, control.run_id) for control in controls]
        known = {run.run_id for run in client.runs()}
        pids = {name: process.pid for name, process in federation.processes.items()}
        fuzzer = Fuzzer(federation, random.Random(seed), controls[0].run_id, tally)
        with contextlib.closing(fuzzer):
            fuzzer.run(messages)
        for name, process in federation.processes.items():
            if process.poll() is not None or process.pid != pids[name]:
                tally.fail(f"{name} ended")
        if [remains_of(federation, client, control.run_id) for control in controls] != before:
            tally.fail("a run that was there before has changed")
        left_behind = {run.run_id for run in client.runs()} - known - fuzzer.started
        if left_behind:
            tally.fail(f"refused calls left runs behind: {left_behind}")
        again = client.start(spec_of("zeroth order, two trees, per step"), "afterwards")
        if wait_for_end(client, again.run_id).state != "COMPLETED":
            tally.fail("a run after the campaign does not complete")
    return tally


def ledger_rows(federation: DisturbableFederation) -> set[tuple[str, str, int, str]]:
    """(holder, run, entry, hash) of every ledger entry in the federation, read behind the services' backs."""
    found = set()
    for holder in (*PARTIES, "coordinator"):
        name = "coordinator.db" if holder == "coordinator" else "party.db"
        path = federation.directory / "state" / holder / name
        if path.exists():
            with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)) as database:
                rows = database.execute("SELECT run, sequence, hash FROM ledger_entries").fetchall()
                found |= {(holder, run, int(sequence), digest) for run, sequence, digest in rows}
    return found


@dataclass
class Outcome:
    """How a call ended, and what it answered before."""

    status: str
    reason: str | None
    answers: list[Any]


@dataclass
class Fuzzer:
    """Sends one wrong message after another."""

    federation: DisturbableFederation
    chance: random.Random
    run_id: str
    tally: Tally
    started: set[str] = field(default_factory=set)
    _methods: list[Served] = field(default_factory=served_methods)
    _channels: dict[tuple[str, str], grpc.Channel] = field(default_factory=dict)
    _known: Known = field(init=False)
    _taken: set[str] = field(default_factory=set)
    """Sessions whose opening was still right after it was changed."""
    _last: list[Any] | None = None
    """What the session at the first party answered last to the right instruction; None once it went on."""

    def __post_init__(self) -> None:
        opening, beginning = party_pb.OpenSessionRequest(), party_pb.BeginSessionRequest()
        self._known = Known(opening, beginning, "bambi", self.run_id)
        self._by_name = {(method.process, method.name): method for method in self._methods}

    def run(self, messages: int) -> None:
        """Send until so many messages have been sent, in sessions that are looked at before and after."""
        number = 0
        self.tally.count("methods", len({method.path for method in self._methods}))
        while self.tally.counts["messages"] < messages:
            ledgers = ledger_rows(self.federation)
            self._open_session()
            sessions = self._sessions()
            for _ in range(PER_SESSION):
                self.send(self._methods[number % len(self._methods)], number)
                number += 1
            self._look_for_traces(number, ledgers, sessions)
            self._close_session()

    def close(self) -> None:
        """Hang up."""
        for channel in self._channels.values():
            channel.close()

    def send(self, method: Served, number: int) -> None:
        """One call, mostly from the role that may make it."""
        chance = self.chance
        caller = method.caller if chance.random() < 0.95 else chance.choice(["client", "coordinator", "shop"])
        messages = [
            mutated(one, chance) if chance.random() < 0.8 else one
            for one in right_messages(method, self._known, chance)
        ]
        if chance.random() < 0.15:
            messages.append(random_message(method.descriptor.input_type._concrete_class, chance))
        asked: list[Any] = [*messages] if method.name in ("StartRun", "CheckSpec") else []
        for message in asked:
            if chance.random() < 0.9:
                message.spec_yaml = mutated_spec(spec_of(chance.choice(list(CASES))), chance)
        outcome = self._call(method, caller, messages)
        self.tally.count("messages", len(messages))
        self.tally.count("answered" if outcome.status == "OK" else "refused")
        unexplained = outcome.status != "OK" and outcome.reason is None and outcome.status not in WITHOUT_REASON
        if outcome.status in UNNAMED or unexplained:
            sent = "; ".join(repr(str(message))[:300] for message in messages)
            self.tally.fail(f"call {number}: {method.path} by {caller}: {outcome.status} {outcome.reason}: {sent}")
        if method.name == "Exchange" and outcome.answers:
            self._last = None
        if outcome.status == "OK" and isinstance(opening := messages[0], party_pb.OpenSessionRequest):
            self._taken.add(opening.session_id)
        if method.name in ("StartRun", "ResumeRun") and outcome.status == "OK":
            run_id = outcome.answers[0].run.run_id
            self.started.add(run_id)
            self._call(self._by_name["coordinator", "CancelRun"], "client", [run_pb.CancelRunRequest(run_id=run_id)])

    def _look_for_traces(self, number: int, ledgers: set[tuple[str, str, int, str]], sessions: int) -> None:
        now = {row for row in ledger_rows(self.federation) if row[1] not in self.started}
        if lost := {row for row in ledgers if row[1] not in self.started} - now:
            self.tally.fail(f"before call {number}: ledger entries were lost: {sorted(lost)}")
        if new := now - ledgers:
            self.tally.fail(f"before call {number}: refused calls were charged: {sorted(new)}")
        self.tally.count("looks at the ledgers")
        for session in sorted(self._taken):
            self._at("bank", "CloseSession", party_pb.CloseSessionRequest(session_id=session))
        self._taken.clear()
        if not self.started and (now_open := self._sessions_left(sessions)) > sessions:
            self.tally.fail(f"before call {number}: {now_open} sessions are open, {sessions} were")
        if self._last is not None:
            again = self._call(self._by_name["bank", "Exchange"], "coordinator", self._first_round()).answers
            if again != self._last:
                self.tally.fail(f"before call {number}: refusals changed a session: {again} for {self._last}")
            self.tally.count("sessions found unchanged")

    def _open_session(self) -> None:
        """Open a session at every party, and begin it at some, as a coordinator would."""
        case = self.chance.choice(list(CASES))
        session = f"fuzz-{self.chance.getrandbits(60)}"
        opening = party_pb.OpenSessionRequest(
            run_id=session,
            session_id=session,
            spec_yaml=spec_of(case),
            version=VERSION,
            purpose=party_pb.PURPOSE_TRAIN,
        )
        answers = [self._at(name, "OpenSession", opening).answers[0] for name in PARTIES]
        beginning = party_pb.BeginSessionRequest(
            session_id=session,
            keys=[answer.key for answer in answers],
            upper_sizes=[answer.upper_size for answer in answers],
            peer_addresses=[proxy.address for proxy in self.federation.proxies.values()],
            outputs=10,
        )
        begun = [name for name in PARTIES if self.chance.random() < 0.8]
        for name in begun:
            self._at(name, "BeginSession", beginning)
        self._known = Known(opening, beginning, CASES[case]["train"]["algorithm"], self.run_id)
        self._last = None
        summed_alone = CASES[case]["privacy"]["aggregation"]["kind"] == "pairwise"
        if "bank" in begun and self._known.algorithm == "bambi" and summed_alone:
            answered = self._call(self._by_name["bank", "Exchange"], "coordinator", self._first_round())
            self._last = answered.answers
            if answered.status != "OK":
                self.tally.fail(f"a right instruction was refused: {answered.status} {answered.reason}")

    def _first_round(self) -> list[Message]:
        return [attach(self._known.opening.session_id), lower_forward(1)]

    def _close_session(self) -> None:
        for name in PARTIES:
            request = party_pb.CloseSessionRequest(session_id=self._known.opening.session_id)
            self._at(name, "CloseSession", request)

    def _sessions_left(self, expected: int) -> int:
        """How many are open once those of checks are closed: a check answers before it closes its sessions."""
        deadline = time.monotonic() + 20
        while (found := self._sessions()) > expected and time.monotonic() < deadline:
            time.sleep(0.1)
        return found

    def _sessions(self) -> int:
        return int(self._at("bank", "Describe", party_pb.DescribeRequest()).answers[0].sessions)

    def _at(self, party: str, name: str, request: Message) -> Outcome:
        method = self._by_name["bank", name]
        served = Served(party, method.caller, method.path, method.descriptor)
        outcome = self._call(served, "coordinator", [request])
        if outcome.status != "OK":
            raise AssertionError(f"{party} refused a right {name}: {outcome.status} {outcome.reason}")
        return outcome

    def _call(self, method: Served, caller: str, messages: list[Any]) -> Outcome:
        kind = method.descriptor
        sort = f"{'stream' if kind.client_streaming else 'unary'}_{'stream' if kind.server_streaming else 'unary'}"
        call: Callable[..., Any] = getattr(self._channel(method.process, caller), sort)(
            method.path,
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=kind.output_type._concrete_class.FromString,
        )
        requests: Iterator[Message] | Message = iter(messages) if kind.client_streaming else messages[0]
        answers: list[Any] = []
        try:
            answer = call(requests, timeout=60)
            if kind.server_streaming:
                answers.extend(answer)
            else:
                answers.append(answer)
        except grpc.RpcError as error:
            return Outcome(error.code().name, reason_of(error), answers)
        return Outcome("OK", None, answers)

    def _channel(self, process: str, caller: str) -> grpc.Channel:
        if (process, caller) not in self._channels:
            role = "coordinator" if process == "coordinator" else "party"
            credentials = channel_credentials(load_identity(self.federation.identity(caller)))
            self._channels[process, caller] = grpc.secure_channel(
                self.federation.addresses[process], credentials, options=channel_options(role, process)
            )
        return self._channels[process, caller]
