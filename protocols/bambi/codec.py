"""BAMBI's rounds as protos. Only releases are encoded; what is decoded is checked here, before a role sees it."""

import math
from collections import deque

from parley.contracts.bambi.v1 import bambi_pb2 as pb
from parley.privacy.release import Addend, Release
from parley.protocols.aggregation.codec import decode_addend, encode_addend, named
from parley.protocols.bambi.crossings import CROSSINGS, statements
from parley.protocols.bambi.messages import (
    Ask,
    Coefficients,
    CurvatureForward,
    CurvatureStep,
    DirectionalForward,
    Gradient,
    LinearSystem,
    LocalForward,
    LocalWork,
    LowerForward,
    Outcome,
    Round,
    RowSetName,
    RowsForward,
    UpperForward,
)
from parley.protocols.bambi.settings import BambiSpec
from parley.protocols.protocol import CrossingProtocol
from parley.protocols.rounds import Checkpoint, Finish
from parley.protocols.tensor.codec import Blobs, MessageInvalid, decode_tensor, encode_tensor

_SETS: dict[RowSetName, pb.RowSet.ValueType] = {
    "lower": pb.ROW_SET_LOWER,
    "upper": pb.ROW_SET_UPPER,
    "test": pb.ROW_SET_TEST,
    "validation": pb.ROW_SET_VALIDATION,
    "all": pb.ROW_SET_ALL,
}
_SYSTEMS: dict[LinearSystem, pb.LinearSystem.ValueType] = {
    "newton": pb.LINEAR_SYSTEM_NEWTON,
    "adjoint": pb.LINEAR_SYSTEM_ADJOINT,
}
_SHARES: dict[type[Ask], str] = {
    DirectionalForward: "directional",
    CurvatureForward: "curvature",
    Checkpoint: "acknowledgement",
    Finish: "acknowledgement",
}
"""What answers an ask, where it is not an embedding."""
LARGEST_COUNT = 1 << 40


def encode_instruction(number: int, release: Release[Round], half: bool = False) -> tuple[pb.Instruction, Blobs]:
    """The instruction of round `number`; `half` sends its arrays in half precision."""
    blobs: Blobs = deque()
    message = pb.Instruction(round=number)
    match release.content.outcome:
        case Gradient(theta=theta, vartheta=vartheta, step_length=length):
            message.gradient.step_length = length
            if theta is not None:
                encode_tensor(theta, blobs, into=message.gradient.theta, half=half)
            if vartheta is not None:
                encode_tensor(vartheta, blobs, into=message.gradient.vartheta, half=half)
        case Coefficients(values=values):
            message.coefficients.values.extend(values)
        case CurvatureStep(product=product, alpha=alpha, beta=beta, solution_product=solution, upper_scale=scale):
            encode_tensor(product, blobs, into=message.curvature.product, half=half)
            message.curvature.alpha, message.curvature.beta = alpha, beta
            if solution is not None:
                encode_tensor(solution, blobs, into=message.curvature.solution_product, half=half)
                message.curvature.upper_scale = scale
        case LocalWork() as work:
            _encode_work(message.local_work, blobs, work, half)
    _encode_ask(message, release.content.ask)
    return message, blobs


def _encode_work(message: pb.LocalWork, blobs: Blobs, work: LocalWork, half: bool) -> None:
    encode_tensor(work.logits, blobs, into=message.logits, half=half)
    encode_tensor(work.labels, blobs, into=message.classes if work.labels.ndim == 1 else message.target)
    message.steps = work.steps
    message.weights.extend(work.weights)
    message.step_scale = work.step_scale


def _encode_ask(message: pb.Instruction, ask: Ask) -> None:
    match ask:
        case LowerForward(k=k, t=t):
            message.lower_forward.CopyFrom(pb.LowerForward(k=k, t=t))
        case UpperForward(k=k):
            message.upper_forward.CopyFrom(pb.UpperForward(k=k))
        case DirectionalForward(k=k):
            message.directional_forward.CopyFrom(pb.DirectionalForward(k=k))
        case CurvatureForward(k=k, system=system, iteration=iteration):
            forward = pb.CurvatureForward(k=k, system=_SYSTEMS[system], iteration=iteration)
            message.curvature_forward.CopyFrom(forward)
        case LocalForward(k=k, batch=batch):
            message.local_forward.CopyFrom(pb.LocalForward(k=k, batch=batch))
        case RowsForward(rows=rows, first=first, count=count):
            message.rows_forward.CopyFrom(pb.RowsForward(rows=_SETS[rows], first=first, count=count))
        case Checkpoint(k=k):
            message.checkpoint.CopyFrom(pb.Checkpoint(k=k))
        case Finish():
            message.finish.CopyFrom(pb.Finish())


def decode_instruction(message: pb.Instruction, blobs: Blobs) -> tuple[Outcome | None, Ask]:
    """The outcome and the ask of an instruction."""
    return _decode_outcome(message, blobs), _decode_ask(message)


def _decode_outcome(message: pb.Instruction, blobs: Blobs) -> Outcome | None:
    match message.WhichOneof("outcome"):
        case "gradient":
            gradient = message.gradient
            theta = vartheta = None
            if gradient.HasField("theta"):
                theta = decode_tensor(gradient.theta, blobs, name="gradient.theta", ndim=3)
            if gradient.HasField("vartheta"):
                vartheta = decode_tensor(gradient.vartheta, blobs, name="gradient.vartheta", ndim=2)
            return Gradient(theta, vartheta, _finite(gradient.step_length, "gradient.step_length"))
        case "coefficients":
            values = message.coefficients.values
            return Coefficients(tuple(_finite(value, "coefficients.values") for value in values))
        case "curvature":
            step = message.curvature
            product = decode_tensor(step.product, blobs, name="curvature.product", ndim=2)
            alpha, beta = _finite(step.alpha, "curvature.alpha"), _finite(step.beta, "curvature.beta")
            if not step.HasField("solution_product"):
                return CurvatureStep(product, alpha, beta)
            solution = decode_tensor(step.solution_product, blobs, name="curvature.solution_product", ndim=2)
            return CurvatureStep(product, alpha, beta, solution, _share(step.upper_scale, "curvature.upper_scale"))
        case "local_work":
            return _decode_work(message.local_work, blobs)
    return None


def _decode_work(work: pb.LocalWork, blobs: Blobs) -> LocalWork:
    if work.HasField("classes") == work.HasField("target"):
        raise MessageInvalid("local_work: either `classes` or `target` says what the labels are")
    logits = decode_tensor(work.logits, blobs, name="local_work.logits", ndim=2)
    if work.HasField("classes"):
        labels = decode_tensor(work.classes, blobs, name="local_work.classes", kinds="u", ndim=1)
    else:
        labels = decode_tensor(work.target, blobs, name="local_work.target", ndim=2)
    weights = tuple(_finite(weight, "local_work.weights") for weight in work.weights)
    return LocalWork(logits, labels, work.steps, weights, _share(work.step_scale, "local_work.step_scale"))


def _decode_ask(message: pb.Instruction) -> Ask:
    match message.WhichOneof("ask"):
        case "lower_forward":
            return LowerForward(_count(message.lower_forward.k), _count(message.lower_forward.t))
        case "upper_forward":
            return UpperForward(_count(message.upper_forward.k))
        case "directional_forward":
            return DirectionalForward(_count(message.directional_forward.k))
        case "curvature_forward":
            forward = message.curvature_forward
            return CurvatureForward(_count(forward.k), named(_SYSTEMS, forward.system), forward.iteration)
        case "local_forward":
            return LocalForward(_count(message.local_forward.k), _count(message.local_forward.batch))
        case "rows_forward":
            rows = message.rows_forward
            return RowsForward(named(_SETS, rows.rows), _count(rows.first), _count(rows.count))
        case "checkpoint":
            return Checkpoint(_count(message.checkpoint.k))
        case "finish":
            return Finish()
    raise MessageInvalid("an instruction must ask for something; this one asks for nothing that is known here")


def encode_contribution(number: int, ask: Ask, release: Release[Addend] | None) -> tuple[pb.Contribution, Blobs]:
    """A party's answer to round `number`; without an addend it only acknowledges."""
    blobs: Blobs = deque()
    message = pb.Contribution(round=number)
    if release is None:
        message.acknowledgement.SetInParent()
        return message, blobs
    share = getattr(message, _SHARES.get(type(ask), "embedding"))
    encode_addend(release, blobs, into=share.sum)
    return message, blobs


def decode_contribution(message: pb.Contribution, blobs: Blobs, ask: Ask) -> Addend | None:
    """What a party adds to the sum of `ask`; None for an acknowledgement."""
    kind = message.WhichOneof("share")
    if kind != _SHARES.get(type(ask), "embedding"):
        raise MessageInvalid(f"{type(ask).__name__} cannot be answered with {kind}")
    if kind == "acknowledgement":
        return None
    return decode_addend(getattr(message, str(kind)).sum, blobs)


def _count(value: int) -> int:
    if value > LARGEST_COUNT:
        raise MessageInvalid(f"a count of {value} is out of range")
    return value


def _finite(value: float, name: str) -> float:
    if not math.isfinite(value):
        raise MessageInvalid(f"{name}: not finite")
    return value


def _share(value: float, name: str) -> float:
    if not 0 < value <= 1:
        raise MessageInvalid(f"{name}: {value} is no share, which lies above 0 and is at most 1")
    return value


PROTOCOL = CrossingProtocol(
    "bambi", BambiSpec, pb.Instruction, pb.Contribution, decode_instruction, CROSSINGS, statements, body="bambi"
)
