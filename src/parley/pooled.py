"""The same run in one process: what a federation is compared with.

The role code and the spec are those of the services; nothing is masked, encoded or sent. With the coordinator's noise
key and the run's id the labels carry the very same noise, so what is left between the two results is the federation.
"""

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from threadpoolctl import threadpool_limits

import parley.coordinator.bambi.rounds as coordinator
import parley.party.bambi.steps as party
from parley.coordinator.bambi.program import loss_of
from parley.coordinator.labels import LabelAccess, ReleasePlan, check_rows
from parley.coordinator.programs import Report
from parley.numerics.arrays import Vector
from parley.numerics.losses import Loss
from parley.numerics.streams import stream
from parley.party.bambi.role import accept, features_of, model_of
from parley.party.roles import Opened
from parley.privacy.ledger import open_ledger
from parley.privacy.noise import new_key
from parley.protocols.bambi.messages import RowsForward
from parley.protocols.bambi.settings import BambiSpec
from parley.protocols.rounds import Finish
from parley.services.coordinator.labels import LabelStore
from parley.services.party.preprocessing import table_of_run
from parley.services.party.tables import TableStore
from parley.spec.rows import divide
from parley.spec.run import RunSpec
from parley.tables.loading import Labels, Table, id_digest


class PooledUnsupported(ValueError):
    """There is no pooled counterpart of the run's algorithm."""


@dataclass(frozen=True)
class PooledRun:
    """What a run in one process gave."""

    metrics: dict[str, float]
    """The newest value of each metric."""
    reports: list[Report]
    """Every report, oldest first."""
    rounds: int
    seconds: float
    predict: Callable[[Sequence[Table]], Vector]
    """Scores, (rows, outputs), of rows that each party's table holds, in the order of the parties."""


def train_pooled(
    spec: RunSpec,
    tables: Mapping[str, TableStore],
    labels: LabelStore,
    *,
    noise_key: bytes | None = None,
    run_id: str = "pooled",
) -> PooledRun:
    """Train `spec` on every party's table at once. `noise_key` and `run_id` repeat a run's label noise."""
    loaded = [table_of_run(tables[entry.name], spec, m, dense=True) for m, entry in enumerate(spec.parties)]
    settings = _pooled_settings(spec)
    known = LabelAccess(spec, run_id, labels.load, open_ledger("sqlite://"), b"").load(settings.loss)
    return train_tables(spec, loaded, known, noise_key=noise_key, run_id=run_id)


def train_tables(
    spec: RunSpec, loaded: Sequence[Table], known: Labels, *, noise_key: bytes | None = None, run_id: str = "pooled"
) -> PooledRun:
    """The same with tables and labels that are in memory already, in the order of the parties."""
    started = time.perf_counter()
    settings = _pooled_settings(spec)
    for entry, table in zip(spec.parties, loaded, strict=True):
        check_rows(known, len(table), bytes.fromhex(id_digest(table.ids)), entry.name)
    rows = divide(spec.split, len(known), stream(spec.seed, "split"))
    loss, outputs = loss_of(settings, known)
    plan = coordinator.Plan(settings, rows, spec.seed)
    access = LabelAccess(spec, run_id, lambda _, __: known, open_ledger("sqlite://"), noise_key or new_key())
    released = ReleasePlan(plan.released_rows, plan.releases, np.union1d(rows.lower, rows.upper))
    gate = access.gate(known, loss, released)
    problem = coordinator.Problem(plan, gate.loss, gate, outputs, spec.dtype, spec.evaluate_every, checkpoint_every=0)
    reports: list[Report] = []
    torch.set_num_threads(1)  # as in a party: matrices this small lose more to a second thread than they gain
    with threadpool_limits(1):
        rounds, states = _drive(problem, _blocks(spec, loaded, plan, outputs), reports)
    metrics = {name: value for report in reports for name, value in report.metrics.items()}
    seconds = time.perf_counter() - started
    return PooledRun(metrics, reports, rounds, seconds, functools.partial(_predict, spec, plan, states, loss, outputs))


def _pooled_settings(spec: RunSpec) -> BambiSpec:
    if not isinstance(spec.train, BambiSpec):
        raise PooledUnsupported(f"{spec.train.algorithm} has no labels in one place to pool: compare a bambi run")
    return spec.train


def _predict(
    spec: RunSpec,
    plan: coordinator.Plan,
    states: Sequence[party.State],
    loss: Loss,
    outputs: int,
    tables: Sequence[Table],
) -> Vector:
    ask = RowsForward("all", 0, len(tables[0]))
    with threadpool_limits(1):
        blocks = _blocks(spec, tables, plan, outputs)
        addends = [party.contribute(block, state, ask)[1] for block, state in zip(blocks, states, strict=True)]
        return loss.predict(np.sum(addends, axis=0).reshape(-1, outputs))


def _blocks(spec: RunSpec, tables: Sequence[Table], plan: coordinator.Plan, outputs: int) -> list[party.Block]:
    places = [Opened(spec, m, "", "", table, TableStore({})) for m, table in enumerate(tables)]
    sizes = tuple(accept(place).upper_size for place in places)
    return [
        party.Block(
            plan.settings, model_of(place), features_of(place), plan.rows, spec.seed, place.index, sizes, outputs
        )
        for place in places
    ]


def _drive(
    problem: coordinator.Problem, blocks: list[party.Block], reports: list[Report]
) -> tuple[int, list[party.State]]:
    states = [party.start(block) for block in blocks]
    rounds = coordinator.rounds(problem, 0, reports.append)
    current, count = next(rounds), 1
    while not isinstance(current.ask, Finish):
        addends: list[Vector] = []
        for m, block in enumerate(blocks):
            if current.outcome is not None:
                states[m] = party.apply(block, states[m], current.outcome)
            states[m], addend = party.contribute(block, states[m], current.ask)
            addends.append(addend)
        current = rounds.send(np.sum(addends, axis=0))
        count += 1
    if current.outcome is not None:
        states = [party.apply(block, state, current.outcome) for block, state in zip(blocks, states, strict=True)]
    return count, states
