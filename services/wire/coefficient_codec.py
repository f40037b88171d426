"""Coefficients on the wire."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Literal

from parley.contracts.party.v1 import party_service_pb2 as pb
from parley.privacy.coefficients import SharedCoefficients
from parley.privacy.release import Release
from parley.services.wire.pages import page_of

Inferred = Literal["standard_error", "p_value", "low", "high"]
INFERENCE: tuple[Inferred, ...] = ("standard_error", "p_value", "low", "high")


def encode_coefficients(release: Release[SharedCoefficients], page_token: str = "") -> pb.GetCoefficientsResponse:
    """A page of what a party lets leave."""
    content = release.content
    page, following = page_of([pb.TunedCoefficient(**asdict(one)) for one in content.coefficients], page_token)
    return pb.GetCoefficientsResponse(coefficients=page, kept=content.kept, next_page_token=following)


def inference_of(coefficients: Iterable[pb.TunedCoefficient]) -> dict[str, dict[str, float]]:
    """By column, what is known of a coefficient beside its value; only columns of which something is."""
    known: dict[str, dict[str, float]] = {
        one.column: {str(name): getattr(one, name) for name in INFERENCE if one.HasField(name)}
        for one in coefficients
        if not one.figure
    }
    return {column: figures for column, figures in known.items() if figures}


def figures_of(coefficients: Iterable[pb.TunedCoefficient]) -> dict[str, dict[str, float]]:
    """By column, figures that are no coefficients, by their names."""
    found: dict[str, dict[str, float]] = {}
    for one in coefficients:
        if one.figure:
            found.setdefault(one.column, {})[one.figure] = one.value
    return found
