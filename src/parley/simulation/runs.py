"""A spec's run in one process, on tables and labels that are all in one place: what a federation is compared with.

With the coordinator's noise key and the run's id the labels carry the very same noise, so what is left between the two
results is the federation.
"""

import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import sqlalchemy as sa
import torch
from threadpoolctl import threadpool_limits

from parley.coordinator.labels import LabelAccess, LabelKind
from parley.coordinator.programs import CommonRows, Report
from parley.numerics.arrays import Vector
from parley.party.roles import Begun, LocalPrivacy, Opened, PartyAlgorithm, RowEngine, SavedModel, Tables
from parley.privacy.dataset_ledger import DatasetTerms
from parley.privacy.ledger import Ledger
from parley.privacy.noise import KeyedNoise, new_key
from parley.privacy.release import OutcomeGate
from parley.services.coordinator.labels import LabelStore
from parley.services.coordinator.programs import coordinator_side
from parley.services.party.algorithms import party_side
from parley.services.party.preprocessing import table_of_run
from parley.services.party.row_noise import noised_rows, with_rows
from parley.services.party.tables import TableStore
from parley.simulation.driver import Exchange, Outcome, Simulation, finished
from parley.simulation.peers import MemoryLine, memory_peers
from parley.simulation.sums import pair_secrets, protected_sums
from parley.spec.run import RunSpec
from parley.tables.loading import Labels, Table

ReadLabels = Callable[[RunSpec, LabelKind], Labels]


class PredictionUnsupported(ValueError):
    """Every party of the run has the whole model: there is nothing to predict together."""


def scratch_ledger() -> Ledger:
    """A ledger in memory, for threads of one process."""
    return Ledger(sa.create_engine("sqlite://", poolclass=sa.StaticPool, connect_args={"check_same_thread": False}))


def scratch_privacy() -> LocalPrivacy:
    """A key and a ledger that are forgotten: for runs that protect nobody."""
    unlimited = DatasetTerms(epsilon=math.inf, delta=1e-6, changed="charge")
    return LocalPrivacy(scratch_ledger(), KeyedNoise(new_key()), math.inf, unlimited)


@dataclass(frozen=True)
class Holding:
    """What one party brings."""

    table: Table
    tables: Tables = field(default_factory=lambda: TableStore({}))
    """Its other tables, and labels of its own."""
    privacy: Callable[[], LocalPrivacy] = scratch_privacy
    engine: RowEngine | None = None
    """What works on many of its rows at once; this process if None."""


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


def holdings_of(
    spec: RunSpec, stores: Mapping[str, TableStore], *, row_noise_key: bytes | None = None
) -> list[Holding]:
    """Every party's tables, preprocessed as their owners declared, and noised as the spec asks.

    All parties draw noise under one key: this process's, unless one is given.
    """
    if spec.binned_by is not None:
        raise ValueError("binned_by: only parties have what a run has explored; leave it out to try a run here")
    names = [entry.name for entry in spec.parties]
    for entry in spec.parties:
        if entry.view is not None:
            raise ValueError(f"{entry.name}'s policy alone knows view {entry.view!r}: name `columns` to try a run here")
    tables = [table_of_run(stores[name], spec, m) for m, name in enumerate(names)]
    key = row_noise_key or _row_noise_key()
    return [
        Holding(_noised(spec, key, table), _NoisedTables(stores[name], spec, key))
        for name, table in zip(names, tables, strict=True)
    ]


def _noised(spec: RunSpec, key: bytes, table: Table) -> Table:
    """Rows as a party would show them."""
    settings = spec.privacy.features
    if settings.kind != "once":
        return table
    return with_rows(table, noised_rows(settings, KeyedNoise(key), table))


@functools.cache
def _row_noise_key() -> bytes:
    """A key of this process, which draws the same noise again."""
    return new_key()


@dataclass(frozen=True)
class _NoisedTables:
    """A party's other tables, which pass the same noise."""

    store: TableStore
    spec: RunSpec
    key: bytes

    def labels(
        self, name: str, classes: Sequence[str] | None = None, kind: Literal["classes", "real"] = "classes"
    ) -> Labels:
        return self.store.labels(name, classes, kind)

    def load_like(self, name: str, other: Table) -> Table:
        return _noised(self.spec, self.key, self.store.load_like(name, other))


def simulation_of(
    spec: RunSpec,
    holdings: Sequence[Holding],
    labels: ReadLabels,
    *,
    run_id: str = "pooled",
    noise_key: bytes | None = None,
    sums: Literal["clear", "protected"] = "clear",
) -> Simulation:
    """The run of a spec, checked as a coordinator checks it; `noise_key` and `run_id` repeat a run's label noise."""
    party, coordinator = party_side(spec.train.algorithm), coordinator_side(spec)
    # the owner's budget over all runs is none of a simulation's business: its ledger is forgotten
    unlimited = DatasetTerms(epsilon=math.inf, delta=0.0)
    access = LabelAccess(
        spec,
        run_id,
        labels,
        scratch_ledger(),
        noise_key or new_key(),
        terms=unlimited,
        problem_imports=spec.train.imports,  # it is the caller's own process
        terms_of=lambda _: unlimited,
    )
    lines = [MemoryLine(m) for m in range(len(holdings))]
    opened = [
        Opened(
            spec,
            m,
            run_id,
            run_id,
            held.table,
            held.tables,
            model_imports=spec.train.imports,
            privacy=held.privacy,
            coordinator=lines[m],
            engine=held.engine,
            correlations="all",  # whose policy it would be is in this process
        )
        for m, held in enumerate(holdings)
    ]
    sizes = _sizes(party, opened)
    for each in opened if spec.train.layout == "vertical" else opened[:1]:
        digest = bytes.fromhex(each.table.row_digest)
        coordinator.check(spec, access, CommonRows(len(each.table), digest, each.name))
    program = coordinator.program(spec, access)
    peers, secrets = memory_peers(len(opened)), pair_secrets(len(opened))
    for line in lines:
        line.program = program
    roles = [party.role(Begun(each, sizes, program.outputs, peers[m], secrets[m])) for m, each in enumerate(opened)]
    protected = protected_sums(spec.privacy.aggregation, len(roles)) if sums == "protected" else None
    return Simulation(party.protocol, program, roles, protected, spec.stop)


def train_pooled(
    spec: RunSpec,
    stores: Mapping[str, TableStore],
    labels: LabelStore,
    *,
    noise_key: bytes | None = None,
    run_id: str = "pooled",
) -> PooledRun:
    """Train `spec` on every party's table at once."""
    return train_holdings(spec, holdings_of(spec, stores), labels.load, noise_key=noise_key, run_id=run_id)


def train_tables(
    spec: RunSpec,
    tables: Sequence[Table],
    known: Labels,
    *,
    noise_key: bytes | None = None,
    run_id: str = "pooled",
    engine: RowEngine | None = None,
) -> PooledRun:
    """The same with tables and labels that are in memory already, in the order of the parties."""
    holdings = [Holding(table, engine=engine) for table in tables]
    return train_holdings(spec, holdings, lambda _, __: known, noise_key=noise_key, run_id=run_id)


def train_holdings(
    spec: RunSpec,
    holdings: Sequence[Holding],
    labels: ReadLabels,
    *,
    noise_key: bytes | None = None,
    run_id: str = "pooled",
) -> PooledRun:
    """The same with whatever each party holds."""
    started, read = time.perf_counter(), _Reader(labels)
    # nobody will resume it, but one that stops early goes back to its best checkpoint
    whole = spec if spec.stop is not None else spec.model_copy(update={"checkpoint_every": 0})
    torch.set_num_threads(1)  # as in a party: matrices this small lose more to a second thread than they gain
    with threadpool_limits(1):
        simulation = simulation_of(whole, holdings, read, run_id=run_id, noise_key=noise_key)
        outcome = simulation.run()
    seconds = time.perf_counter() - started
    predict = functools.partial(_predict, spec, models_of(simulation, outcome), read.classes)
    return PooledRun(outcome.metrics, outcome.reports, outcome.rounds, seconds, predict)


def models_of(simulation: Simulation, outcome: Outcome) -> list[SavedModel]:
    """What every party would save."""
    return [role.model_tensors(state) for role, state in zip(simulation.roles, outcome.states, strict=True)]


class _Reader:
    """Reads labels, and remembers what their classes are called: a prediction needs to know."""

    def __init__(self, read: ReadLabels) -> None:
        self._read = read
        self.classes: tuple[str, ...] = ()

    def __call__(self, spec: RunSpec, kind: LabelKind) -> Labels:
        labels = self._read(spec, kind)
        self.classes = labels.classes
        return labels


def _predict(spec: RunSpec, models: Sequence[SavedModel], classes: tuple[str, ...], tables: Sequence[Table]) -> Vector:
    party, coordinator = party_side(spec.train.algorithm), coordinator_side(spec)
    if party.predictor is None or coordinator.predictor is None:
        raise PredictionUnsupported(f"every party of a run of {spec.train.algorithm} has the whole model")
    nothing = Labels(np.empty(0, dtype=np.str_), np.empty(0, dtype=np.int64), classes)
    predictor = coordinator.predictor(spec, LabelAccess(spec, "", lambda _, __: nothing, _unused_ledger(), b""))
    imports = spec.train.imports
    opened = [
        Opened(spec, m, "", "", table, TableStore({}), predicts=True, model_imports=imports, privacy=scratch_privacy)
        for m, table in enumerate(tables)
    ]
    sizes, peers, secrets = _sizes(party, opened), memory_peers(len(opened)), pair_secrets(len(opened))
    with threadpool_limits(1):
        roles = [
            party.predictor(Begun(each, sizes, predictor.form.outputs, peers[m], secrets[m]), models[m])
            for m, each in enumerate(opened)
        ]
        states, gate = [role.begin(None) for role in roles], OutcomeGate(lambda _: False)  # no label is in an ask
        exchange = Exchange(party.protocol, predictor.form, gate, roles, states)
        total = finished(exchange.ask(predictor.ask(0, len(tables[0]))))
    assert total is not None  # noqa: S101 (rows are summed)
    return predictor.scores(total)


@functools.cache
def _unused_ledger() -> Ledger:
    """A prediction releases no label; whoever opens labels must name a ledger."""
    return scratch_ledger()


def _sizes(party: PartyAlgorithm, opened: Sequence[Opened]) -> list[int]:
    return [party.accept(each).upper_size for each in opened]
