"""What BAMBI's rounds carry: rows times columns of the summed embedding, down as gradients and up as addends."""

from math import ceil

import numpy as np

from parley.coordinator.bambi.rounds import EVALUATION_ROWS
from parley.coordinator.forecasts import Forecast, Trips, evaluations, kept
from parley.protocols.bambi.batches import envelope
from parley.protocols.bambi.settings import BambiSpec
from parley.spec.rows import RowSets
from parley.spec.run import RunSpec

LIMBS = 4
"""Numbers that go with a product of curvature: two scalars in two limbs each."""


def forecast(spec: RunSpec, sets: RowSets, outputs: int) -> Forecast | None:
    """The round trips of a run, at most; None for a mode that is not foretold."""
    train, columns = spec.settings(BambiSpec), spec.settings(BambiSpec).columns(outputs)
    size = 2 if train.sends_half(spec.dtype) else np.dtype(spec.dtype).itemsize
    if train.hypergradient == "local":
        steps, trips = train.local.exchanges, _local(train, sets, outputs, size)
    elif train.hypergradient == "implicit" or train.hypergradient.startswith("zeroth_order"):
        steps, trips = train.upper.steps, _steps(train, sets, columns, size)
    else:
        return None
    measured = evaluations(steps, spec.evaluate_every)
    for rows in sets.held_out.values():
        parts = ceil(len(rows) / EVALUATION_ROWS)
        trips.append(Trips(measured * parts, summed=len(rows) / parts * columns))
    return [*trips, kept(steps, spec.checkpoint_every)]


def _steps(train: BambiSpec, sets: RowSets, columns: int, size: int) -> list[Trips]:
    """Lower solves, and what the upper level adds to each iteration."""
    implicit, newton = train.hypergradient == "implicit", train.lower.solver == "newton"
    lower = columns * min(train.lower.batch or len(sets.lower), len(sets.lower))
    upper = columns * min(train.upper.batch or len(sets.upper), len(sets.upper))
    steps, iterations = train.lower, train.upper.steps
    if train.problem == "joint":
        return [Trips(iterations, size * upper, upper)]
    trips = []
    # Outside the iterations nothing is perturbed.
    for times, length, paths in (
        (iterations, steps.steps, train.trajectories),
        (1, steps.warmup_steps, 1),
        (1, steps.final_steps, 1),
    ):
        if newton and length:
            trips += [
                Trips(times * (length + 1), size * lower, lower + 2),
                Trips(times * length * train.implicit.newton_rounds, size * lower, lower + LIMBS),
            ]
        elif length:
            trips.append(Trips(times * length, size * paths * lower, paths * lower))
    if implicit and not newton:
        trips.append(Trips(iterations, size * lower, lower))
    trips.append(Trips(iterations, size * upper, upper))
    if implicit and not envelope(train, sets):
        rounds = train.implicit.rounds  # with the last of them, the product with the solution goes down too
        trips.append(Trips(iterations * rounds, size * lower * (1 + 1 / rounds), lower + LIMBS))
    if train.hypergradient == "zeroth_order":
        trips.append(Trips(iterations, 8 * train.zeroth_order.directions, train.zeroth_order.directions))
    return trips


def _local(train: BambiSpec, sets: RowSets, outputs: int, size: int) -> list[Trips]:
    local, columns = train.local, train.columns(outputs)
    rows = len(sets.lower) / ceil(len(sets.lower) / local.rows)
    labels = 1 if outputs <= 256 else 4
    return [Trips(local.exchanges, rows * (columns * size + labels), rows * columns)]
