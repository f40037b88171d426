"""Bodies of run events as messages, and back."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from parley.contracts.run.v1 import run_pb2 as pb
from parley.spec.events import (
    Body,
    RunData,
    RunEvaluation,
    RunParty,
    RunPrivacy,
    RunProgress,
    RunStateChange,
    RunTotals,
    RunWarning,
)

_CHANGES = {
    "lost": pb.RUN_PARTY_CHANGE_LOST,
    "left": pb.RUN_PARTY_CHANGE_LEFT,
    "warned": pb.RUN_PARTY_CHANGE_WARNED,
}
_CHANGE_NAMES: Mapping[int, Any] = {number: name for name, number in _CHANGES.items()}


def encode_metrics(metrics: Mapping[str, float]) -> list[pb.Metric]:
    """Measurements by name."""
    return [pb.Metric(name=name, value=value) for name, value in metrics.items()]


def decode_metrics(metrics: Iterable[pb.Metric]) -> dict[str, float]:
    """Measurements by name."""
    return {metric.name: metric.value for metric in metrics}


def set_body(event: pb.RunEvent, body: Body | None) -> None:
    """Put a body into an event; events of 0.1.0 have none."""
    match body:
        case RunStateChange(totals=totals):
            event.state_change.CopyFrom(
                pb.RunStateChange(
                    attempt=body.attempt,
                    from_step=body.from_step,
                    reason=body.reason,
                    left_out=body.left_out,
                    model_step=body.model_step,
                    measured=encode_metrics(body.measured),
                )
            )
            if totals is not None:
                event.state_change.totals.CopyFrom(_totals(totals))
        case RunProgress(totals, checkpoint, measured):
            progress = pb.RunProgress(checkpoint=checkpoint, measured=encode_metrics(measured), totals=_totals(totals))
            event.progress.CopyFrom(progress)
        case RunEvaluation(totals, measured):
            event.evaluation.CopyFrom(pb.RunEvaluation(measured=encode_metrics(measured), totals=_totals(totals)))
        case RunPrivacy():
            event.privacy.CopyFrom(pb.RunPrivacy(**asdict(body)))
        case RunParty():
            event.party.CopyFrom(pb.RunParty(**{**asdict(body), "change": _CHANGES[body.change]}))
        case RunData():
            event.data_opened.CopyFrom(pb.RunData(**asdict(body)))
        case RunWarning():
            event.warning.CopyFrom(pb.RunWarning(**asdict(body)))


def body_of(event: pb.RunEvent) -> Body | None:
    """The body of an event; None if it has none, or one that this version does not know."""
    match event.WhichOneof("body"):
        case "state_change":
            change = event.state_change
            totals = _read_totals(change.totals) if change.HasField("totals") else None
            return RunStateChange(
                change.attempt,
                change.from_step,
                change.reason,
                tuple(change.left_out),
                totals,
                change.model_step,
                decode_metrics(change.measured),
            )
        case "progress":
            progress = event.progress
            return RunProgress(_read_totals(progress.totals), progress.checkpoint, decode_metrics(progress.measured))
        case "evaluation":
            return RunEvaluation(_read_totals(event.evaluation.totals), decode_metrics(event.evaluation.measured))
        case "privacy":
            return RunPrivacy(**_fields(event.privacy))
        case "party":
            party = _fields(event.party)
            return RunParty(**{**party, "change": _CHANGE_NAMES[event.party.change]})
        case "data_opened":
            return RunData(**_fields(event.data_opened))
        case "warning":
            return RunWarning(**_fields(event.warning))
    return None


def _totals(totals: RunTotals) -> pb.RunTotals:
    return pb.RunTotals(**asdict(totals))


def _read_totals(totals: pb.RunTotals) -> RunTotals:
    return RunTotals(**_fields(totals))


def _fields(message: Any) -> dict[str, Any]:
    """Every scalar field of a message, those with their default too."""
    return {field.name: getattr(message, field.name) for field in message.DESCRIPTOR.fields}
