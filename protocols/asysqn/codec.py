"""AsySQN's messages as protos. Only releases are encoded; what is decoded is checked here, before a role sees it."""

import math
from collections import deque
from typing import Literal

from parley.contracts.asysqn.v1 import asysqn_pb2 as pb
from parley.contracts.coordinator.v1 import coordinator_service_pb2 as coordinator_pb
from parley.privacy.release import Addend, OpenedSum, Release, TreeSum
from parley.protocols.aggregation.codec import decode_addend, decode_tree_sum, encode_addend, encode_tree_sum, named
from parley.protocols.asysqn.crossings import CROSSINGS, statements
from parley.protocols.asysqn.messages import (
    AllRows,
    Ask,
    AsysqnRound,
    Batch,
    Derivative,
    Evaluate,
    Halt,
    OpenedTheta,
    Outcome,
    Progress,
    Report,
    RowsName,
    Start,
    ThetaForward,
    ThetaRequest,
    is_summed,
)
from parley.protocols.asysqn.settings import AsysqnSpec
from parley.protocols.protocol import CrossingProtocol
from parley.protocols.rounds import Checkpoint, Finish
from parley.protocols.tensor.codec import Array, Blobs, MessageInvalid, decode_tensor, encode_tensor

_EVALUATED_ROWS: dict[Literal["watched", "all"], pb.LookRows.ValueType] = {
    "watched": pb.LOOK_ROWS_WATCHED,
    "all": pb.LOOK_ROWS_ALL,
}
LARGEST_COUNT = 1 << 40
RowsMessage = pb.ThetaRequest | pb.ThetaForward | coordinator_pb.SlopesQuestion


def encode_instruction(number: int, release: Release[AsysqnRound]) -> tuple[pb.Instruction, Blobs]:
    """The instruction of round `number`."""
    blobs: Blobs = deque()
    message = pb.Instruction(round=number)
    match release.content.outcome:
        case OpenedTheta(values=values):
            encode_tensor(values, blobs, into=message.opened.values)
        case Derivative(values=values):
            encode_tensor(values, blobs, into=message.slopes.derivative)
    match release.content.ask:
        case ThetaForward(rows=rows):
            message.theta_forward.SetInParent()
            _encode_rows(message.theta_forward, rows)
        case Start():
            message.start.SetInParent()
        case Report():
            message.report.SetInParent()
        case Evaluate(rows=look, first=first, count=count):
            message.look.CopyFrom(pb.Look(rows=_EVALUATED_ROWS[look], first=first, count=count))
        case Halt():
            message.halt.SetInParent()
        case Checkpoint(k=k):
            message.checkpoint.k = k
        case Finish():
            message.finish.SetInParent()
    return message, blobs


def decode_instruction(message: pb.Instruction, blobs: Blobs) -> tuple[Outcome | None, Ask]:
    """The outcome and the ask of an instruction."""
    outcome: Outcome | None = None
    match message.WhichOneof("outcome"):
        case "opened":
            outcome = OpenedTheta(decode_tensor(message.opened.values, blobs, name="opened.values", ndim=1))
        case "slopes":
            outcome = Derivative(decode_tensor(message.slopes.derivative, blobs, name="slopes.derivative", ndim=1))
    return outcome, _decode_ask(message)


def _decode_ask(message: pb.Instruction) -> Ask:
    match message.WhichOneof("ask"):
        case "theta_forward":
            return ThetaForward(_decode_rows(message.theta_forward))
        case "start":
            return Start()
        case "report":
            return Report()
        case "look":
            look = message.look
            return Evaluate(named(_EVALUATED_ROWS, look.rows), _count(look.first), _count(look.count))
        case "halt":
            return Halt()
        case "checkpoint":
            return Checkpoint(_count(message.checkpoint.k))
        case "finish":
            return Finish()
    raise MessageInvalid("an instruction must ask for something; this one asks for nothing that is known here")


def encode_contribution(
    number: int, progress: Progress, release: Release[Addend] | None
) -> tuple[pb.Contribution, Blobs]:
    """A party's answer to round `number`; without an addend it only acknowledges."""
    blobs: Blobs = deque()
    message = pb.Contribution(round=number, progress=pb.Progress(**vars(progress)))
    if release is None:
        message.acknowledgement.SetInParent()
    else:
        encode_addend(release, blobs, into=message.theta.sum)
    return message, blobs


def decode_contribution(message: pb.Contribution, blobs: Blobs, ask: Ask) -> tuple[Addend | None, Progress]:
    """What a party adds to the sum of `ask` (None for an acknowledgement), and how far it is."""
    kind = message.WhichOneof("share")
    if kind != ("theta" if is_summed(ask) else "acknowledgement"):
        raise MessageInvalid(f"{type(ask).__name__} cannot be answered with {kind}")
    found = message.progress
    durations = (found.busy_seconds, found.loop_seconds)
    if not all(math.isfinite(value) and value >= 0 for value in durations):
        raise MessageInvalid("progress: durations must be finite and not negative")
    progress = Progress(
        found.party,
        _count(found.updates),
        _count(found.calls),
        _count(found.peer_bytes),
        *durations,
        _count(found.staleness),
        _count(found.updates_alone),
    )
    return (decode_addend(message.theta.sum, blobs) if kind == "theta" else None), progress


def encode_request(request: ThetaRequest) -> pb.ThetaRequest:
    """A request to peers; it holds a count and a name, nothing derived from data."""
    message = pb.ThetaRequest(round=request.round)
    _encode_rows(message, request.rows)
    return message


def decode_request(message: pb.ThetaRequest) -> ThetaRequest:
    """A peer's request."""
    return ThetaRequest(_count(message.round), _decode_rows(message))


def encode_partial(requester: int, release: Release[TreeSum], blobs: Blobs) -> pb.PartialTheta:
    """A partial sum on its way up one of the requester's trees."""
    return pb.PartialTheta(requester=requester, masked_theta=encode_tree_sum(release, blobs))


def encode_share(requester: int, number: int, release: Release[Addend], blobs: Blobs) -> pb.PartialTheta:
    """A share under masks that cancel, straight to the requester."""
    share = pb.Share(round=number, sum=encode_addend(release, blobs))
    return pb.PartialTheta(requester=requester, share=share)


def decode_partial(message: pb.PartialTheta, blobs: Blobs) -> tuple[int, int, TreeSum | Addend]:
    """Requester, round and part of a sum on its way."""
    match message.WhichOneof("part"):
        case "masked_theta":
            part = decode_tree_sum(message.masked_theta, blobs)
            return message.requester, part.round, part
        case "share":
            return message.requester, message.share.round, decode_addend(message.share.sum, blobs)
    raise MessageInvalid("a partial sum holds a part; this one holds none that is known here")


def encode_question(
    session_id: str, rows: RowsName, release: Release[OpenedSum]
) -> tuple[coordinator_pb.SlopesQuestion, Blobs]:
    """Ask the label holder for ∂L/∂θ at a sum that this party opened."""
    blobs: Blobs = deque()
    message = coordinator_pb.SlopesQuestion(session_id=session_id)
    encode_tensor(release.content.values, blobs, into=message.opened_theta)
    _encode_rows(message, rows)
    return message, blobs


def decode_question(message: coordinator_pb.SlopesQuestion, blobs: Blobs) -> tuple[RowsName, Array]:
    """Rows and sum of a question."""
    theta = decode_tensor(message.opened_theta, blobs, name="question.opened_theta", ndim=1)
    return _decode_rows(message), theta


def encode_slopes(release: Release[Derivative]) -> tuple[pb.Slopes, Blobs]:
    """The label holder's answer."""
    blobs: Blobs = deque()
    return pb.Slopes(derivative=encode_tensor(release.content.values, blobs)), blobs


def decode_slopes(message: pb.Slopes, blobs: Blobs) -> Array:
    """∂L/∂θ, one number for each row."""
    return decode_tensor(message.derivative, blobs, name="slopes.derivative", ndim=1)


def _encode_rows(message: RowsMessage, rows: RowsName) -> None:
    match rows:
        case Batch(k=k, t=t):
            message.batch.CopyFrom(pb.Batch(k=k, t=t))
        case AllRows():
            message.all_rows.SetInParent()


def _decode_rows(message: RowsMessage) -> RowsName:
    match message.WhichOneof("rows"):
        case "batch":
            return Batch(_count(message.batch.k), _count(message.batch.t))
        case "all_rows":
            return AllRows()
    raise MessageInvalid("rows: a batch or all rows must be named")


def _count(value: int) -> int:
    if value > LARGEST_COUNT:
        raise MessageInvalid(f"a count of {value} is out of range")
    return value


PROTOCOL = CrossingProtocol(
    "asysqn",
    AsysqnSpec,
    pb.Instruction,
    pb.Contribution,
    decode_instruction,
    CROSSINGS,
    statements,
    body="asysqn",
    peer_messages=(pb.ThetaRequest, pb.PartialTheta),
)
