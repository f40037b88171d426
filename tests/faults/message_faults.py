"""Scenarios between a coordinator and its parties, message by message: repeated, skipped, swapped, and read slowly."""

import contextlib
import secrets
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import numpy as np

from parley.contracts.bambi.v1 import bambi_pb2
from parley.contracts.party.v1 import party_service_pb2 as pb
from parley.contracts.party.v1 import party_service_pb2_grpc as pb_grpc
from parley.numerics.arrays import Vector
from parley.privacy.aggregation import SumOpening
from parley.protocols.bambi.codec import decode_contribution
from parley.protocols.bambi.messages import LowerForward
from parley.protocols.tensor.codec import Blobs, encode_tensor
from parley.services.wire.certificates import load_identity
from parley.services.wire.refusals import reason_of
from parley.services.wire.transport import channel_credentials, channel_options
from parley.services.wire.version import VERSION
from parley.spec.parsing import parse_spec
from tests.faults.cases import PARTIES, spec_of
from tests.faults.proxy import Weather
from tests.faults.stage import Stage

CASE = "zeroth order, pairwise, per step"
ROUNDS = 4
BATCH, OUTPUTS = 64, 10
"""Rows of a lower batch of the case, and classes."""
MOST_MEGABYTES = 50.0
"""What a coordinator may grow by while a party reads slowly; a run's messages would be hundreds of megabytes."""


class Coordinator:
    """A session with every party, driven by hand: any instruction at any time, over a stream of its own."""

    def __init__(self, stage: Stage) -> None:
        credentials = channel_credentials(load_identity(stage.federation.identity("coordinator")))
        self._channels = {
            name: grpc.secure_channel(
                stage.federation.addresses[name], credentials, options=channel_options("party", name)
            )
            for name in PARTIES
        }
        self._stubs = {name: pb_grpc.PartyServiceStub(channel) for name, channel in self._channels.items()}
        self._session = f"by-hand-{secrets.token_hex(8)}"
        opening = pb.OpenSessionRequest(
            run_id=self._session,
            session_id=self._session,
            spec_yaml=spec_of(CASE),
            version=VERSION,
            purpose=pb.PURPOSE_TRAIN,
        )
        opened = [stub.OpenSession(opening, timeout=60) for stub in self._stubs.values()]
        beginning = pb.BeginSessionRequest(
            session_id=self._session,
            keys=[answer.key for answer in opened],
            upper_sizes=[answer.upper_size for answer in opened],
            peer_addresses=[stage.federation.addresses[name] for name in PARTIES],
            outputs=OUTPUTS,
        )
        for stub in self._stubs.values():
            stub.BeginSession(beginning, timeout=60)

    def send(self, party: str, *instructions: bambi_pb2.Instruction) -> tuple[list[pb.ExchangeResponse], str | None]:
        """Send instructions on a new stream; what was answered before its end, and the reason if it was refused."""
        requests: list[pb.ExchangeRequest] = [pb.ExchangeRequest(attach=pb.Attach(session_id=self._session))]
        requests += [pb.ExchangeRequest(bambi=instruction) for instruction in instructions]
        answers: list[pb.ExchangeResponse] = []
        try:
            answers.extend(self._stubs[party].Exchange(iter(requests), timeout=60))
        except grpc.RpcError as error:
            return answers, reason_of(error)
        return answers, None

    def close(self) -> None:
        """Let every party forget the session."""
        for name, stub in self._stubs.items():
            stub.CloseSession(pb.CloseSessionRequest(session_id=self._session), timeout=60)
            self._channels[name].close()


def instruction(number: int, before: Vector | None, t: int | None = None) -> bambi_pb2.Instruction:
    """The instruction of a round: a gradient for the sum before, and the embeddings of the next lower batch."""
    ask = bambi_pb2.LowerForward(k=1, t=number - 1 if t is None else t)
    message = bambi_pb2.Instruction(round=number, lower_forward=ask)
    if before is not None:
        gradient = np.cos(np.arange(before.size)).reshape(-1, BATCH, OUTPUTS - 1).astype(before.dtype)
        message.gradient.theta.CopyFrom(encode_tensor(gradient, Blobs()))
    return message


def repeated_skipped_and_swapped_messages(stage: Stage) -> None:
    """A repeated instruction gets the same bytes; one too early, late or changed is refused; the sums stay the same."""
    undisturbed: list[Vector] = []
    with contextlib.closing(Coordinator(stage)) as coordinator:
        for number in range(1, ROUNDS + 1):
            due = instruction(number, undisturbed[-1] if undisturbed else None)
            undisturbed.append(_sum([_only(coordinator.send(name, due)) for name in PARTIES]))
    with contextlib.closing(Coordinator(stage)) as coordinator:
        before: Vector | None = None
        for number in range(1, ROUNDS + 1):
            answers = [_disturbed_round(stage, coordinator, name, number, before) for name in PARTIES]
            before = _sum(answers)
            if not np.array_equal(before, undisturbed[number - 1]):
                raise AssertionError(f"round {number} sums up to other bits than without disturbance")
    if all(np.array_equal(total, undisturbed[0]) for total in undisturbed[1:]):
        raise AssertionError("the rounds change nothing, so nothing was shown")


def _disturbed_round(
    stage: Stage, coordinator: Coordinator, party: str, number: int, before: Vector | None
) -> pb.ExchangeResponse:
    """What a party answers to a round while it is sent others, before and after."""
    for wrong in _wrong(stage, number, before):
        found = coordinator.send(party, wrong)
        if found != ([], "ROUND_MISMATCH"):
            raise AssertionError(f"round {wrong.round} where {number} is due: {found}")
    due = instruction(number, before)
    answer = _only(coordinator.send(party, due))
    repeated, refused = coordinator.send(party, due, due)
    if refused or [one.SerializeToString() for one in repeated] != 2 * [answer.SerializeToString()]:
        raise AssertionError(f"a repeated round {number} got other bytes ({refused})")
    swapped = coordinator.send(party, instruction(number + 2, before), instruction(number + 1, before))
    if swapped != ([], "ROUND_MISMATCH"):
        raise AssertionError(f"rounds {number + 2} and {number + 1} were taken in this order")
    return answer


def _wrong(stage: Stage, number: int, before: Vector | None) -> Iterator[bambi_pb2.Instruction]:
    """Instructions that are not due: later ones, one that is long past, and the last one with other content."""
    yield instruction(number + stage.chance.choice((1, 2, 7, 1 << 40)), before, t=number - 1)
    if number > 2:
        yield instruction(number - 2, before)
    if number > 1:
        yield instruction(number - 1, before, t=99)


def _only(outcome: tuple[list[pb.ExchangeResponse], str | None]) -> pb.ExchangeResponse:
    answers, refused = outcome
    if refused or len(answers) != 1:
        raise AssertionError(f"the instruction that is due got {len(answers)} answers, {refused}")
    return answers[0]


def _sum(answers: list[pb.ExchangeResponse]) -> Vector:
    """What a coordinator opens: masks cancel, so the sum is the same in every session."""
    blobs: Blobs = Blobs()
    addends = [decode_contribution(answer.bambi, blobs, LowerForward(1, 0)) for answer in answers]
    opening = SumOpening(parse_spec(spec_of(CASE)).privacy.aggregation, len(PARTIES))
    return opening.open([addend for addend in addends if addend is not None], range(len(PARTIES)))


def slow_reader(stage: Stage) -> None:
    """A party that takes its messages slowly slows its run down; the coordinator does not pile them up."""
    process = stage.federation.processes["coordinator"]
    stage.check_end(stage.start())
    before = resident_megabytes(process.pid)
    proxy = stage.federation.proxies["telco"]
    runs = [stage.start(round_seconds=60) for _ in range(2)]
    proxy.weather = Weather(bytes_per_second=20_000)
    try:
        for _ in range(20):
            time.sleep(0.5)
            grown = resident_megabytes(process.pid) - before
            if grown > MOST_MEGABYTES:
                raise AssertionError(f"a slow reader made the coordinator {grown:.0f} MB larger")
    finally:
        proxy.weather = Weather()
    for run in runs:
        stage.check_end(run)


def resident_megabytes(pid: int) -> float:
    """Memory of a process."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) / 1024
