"""From what an algorithm's rounds carry to the bytes that cross: the protection's own, and those of every message."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from parley.coordinator.forecasts import Forecast
from parley.coordinator.labels import LabelsMissing
from parley.spec.run import RunSpec
from parley.tables.errors import TableError

INSTRUCTION_BYTES, BARE_BYTES, ADDEND_BYTES, ACKNOWLEDGEMENT_BYTES = 40, 20, 40, 10
"""What a message holds beside its data: numbers of rounds, names of shapes; less where there are no data."""
RECEIPT_BYTES, LEDGER_BYTES = 230, 60
"""A party's signed word for a checkpoint, which everybody gets to see; and in it the head of the label ledger."""
CHECK_BYTES = 8
"""Zeros at the end of a masked vector, by which an opened sum is known."""


class Unforetold(ValueError):
    """What a run would send cannot be told before it starts."""


@dataclass(frozen=True)
class Foretold:
    """What a run would send over the coordinator's link."""

    rounds: int
    sent_bytes: int
    received_bytes: int
    peer_bytes: int = 0
    """Between the parties."""


def foretold(spec: RunSpec, forecast: Callable[[RunSpec], Forecast | None]) -> Foretold:
    """The forecast of a run's algorithm, in bytes.

    Raises:
        Unforetold: if there is none.
        WidthsUnknown: if it needs to know more about the parties' tables.
    """
    aggregation, parties = spec.privacy.aggregation, len(spec.parties)
    if aggregation.recovery:
        raise Unforetold("sums with recovery take more steps when a party is lost: nobody can tell before")
    try:
        trips = forecast(spec)
    except (LabelsMissing, TableError) as error:
        raise Unforetold(f"the number of rows is not known: {error}") from None
    if trips is None:
        raise Unforetold(f"{spec.train.algorithm} does not tell before a run with these settings what it will send")
    receipt = RECEIPT_BYTES + (LEDGER_BYTES if spec.train.layout == "vertical" else 0)
    rounds = sent = received = between = 0.0
    for trip in trips:
        present = parties if trip.participants is None else trip.participants
        answers = min(present, 2) if aggregation.kind == "two_tree" else present  # only the roots of the trees answer
        width = aggregation.resolved[0] / 8
        if aggregation.kind == "plain":
            width = trip.number_bytes or np.dtype(spec.dtype).itemsize
        rounds += trip.count
        between += trip.count * trip.between
        sent += trip.count * present * (trip.sent + (INSTRUCTION_BYTES if trip.sent or trip.summed else BARE_BYTES))
        up = answers * (trip.summed * width + CHECK_BYTES + ADDEND_BYTES) if trip.summed else 0.0
        received += trip.count * (up + present * ACKNOWLEDGEMENT_BYTES)
        if trip.keeps:
            sent += trip.count * present * parties * receipt
            received += trip.count * present * receipt
    if any(trip.keeps for trip in trips):
        sent -= parties * parties * receipt  # those for the model are shown when the session is closed
    return Foretold(round(rounds), round(sent), round(received), round(between))
