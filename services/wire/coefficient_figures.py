"""What comes with coefficients on the wire, as whoever shows them wants it. A client loads this, so it loads little."""

from collections.abc import Iterable
from typing import Literal

from parley.contracts.party.v1 import party_service_pb2 as pb

Inferred = Literal["standard_error", "p_value", "low", "high"]
INFERENCE: tuple[Inferred, ...] = ("standard_error", "p_value", "low", "high")


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
