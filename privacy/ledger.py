"""The privacy ledger: append-only, hash-chained, written before anything leaves.

A step must not wait for a disk, so budget is reserved ahead in blocks of releases: `reserve` writes one row, durably,
and `covers` then answers from memory. After a crash the same call finds its row and spends nothing, because a release
that is sent again carries the same noise (privacy/noise.py).

What one run's chain shows. Each row's hash covers all its columns, the hash of the row before it, and the per-record
counters after it; the run's head holds the length and the last hash. `verify` names the first broken link: a changed
byte, a row taken out or moved, a cut tail, changed counters. What it cannot show by itself: whoever may rewrite the
database may also recompute the whole chain and its head, or delete a run altogether. Keep `head(run)` somewhere else
(the parties get it with the run's events) and pass it to `verify`.

Runs on SQLite (one file) and PostgreSQL. Writers of one run are serialised: by an immediate transaction on SQLite, by a
lock on the head row on PostgreSQL, and the primary key (run, sequence) refuses whatever slips through.
"""

from __future__ import annotations

import copy
import json
import math
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import wraps
from hashlib import sha256
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from parley.privacy.accounting import (
    Composed,
    Event,
    RecordCounts,
    Release,
    Together,
    Unprotected,
    from_json,
    online_epsilon,
    reported_epsilon,
    to_json,
)
from parley.privacy.dataset_ledger import (
    Account,
    DatasetCharge,
    DatasetTerms,
    account_of,
    charge_dataset,
    dataset_names,
    open_account,
    verify_account,
)
from parley.privacy.dataset_ledger import BudgetExhausted as BudgetExhausted
from parley.privacy.ledger_tables import metadata
from parley.storage.engines import open_engine, write_transaction
from parley.storage.failures import StorageAway, StorageFailed, named_failures
from parley.storage.migrations import History, upgrade

heads = sa.Table(
    "ledger_heads",
    metadata,
    sa.Column("run", sa.Text, primary_key=True),
    sa.Column("length", sa.BigInteger, nullable=False),
    sa.Column("hash", sa.Text, nullable=False),
    sa.Column("records", sa.BigInteger, nullable=False),
    sa.Column("budget_epsilon", sa.Double, nullable=False),
    sa.Column("budget_delta", sa.Double, nullable=False),
    sa.Column("data_digest", sa.Text, nullable=True),  # runs of 0.1.0 have none
    sa.Column("dataset", sa.Text, nullable=True),  # a run of the data's own party has none, nor has one of 0.2.0
)

entries = sa.Table(
    "ledger_entries",
    metadata,
    sa.Column("run", sa.Text, primary_key=True),
    sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("time", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("mechanism", sa.Text, nullable=False),
    sa.Column("recipients", sa.Text, nullable=False),
    sa.Column("first_release", sa.BigInteger, nullable=False),
    sa.Column("release_count", sa.BigInteger, nullable=False),
    sa.Column("records", sa.BigInteger, nullable=False),
    sa.Column("epsilon", sa.Double, nullable=False),
    sa.Column("delta", sa.Double, nullable=False),
    sa.Column("largest_count", sa.BigInteger, nullable=False),
    sa.Column("charge_hash", sa.Text, nullable=False),
    sa.Column("counters_hash", sa.Text, nullable=False),
    sa.Column("previous_hash", sa.Text, nullable=False),
    sa.Column("hash", sa.Text, nullable=False),
)

counters = sa.Table(
    "ledger_counters",
    metadata,
    sa.Column("run", sa.Text, primary_key=True),
    sa.Column("mechanism", sa.Text, primary_key=True),
    sa.Column("counts", sa.LargeBinary, nullable=False),
)

HISTORY = History("ledger", metadata, Path(__file__).parent / "ledger_revisions", newest="0003")

Counters = dict[str, RecordCounts]


class RunNotOpen(LookupError):
    """The ledger has no such run."""


class LedgerConflict(ValueError):
    """A call contradicts what the ledger already holds."""


class DataChanged(LedgerConflict):
    """A run goes on with other data than it was opened with."""


class LedgerBroken(RuntimeError):
    """The chain of a run does not verify."""


class LedgerUnusable(OSError):
    """The ledger's database cannot be opened, read or written; nothing may be released."""


class _Rehearsed(Exception):
    """A rehearsal has come to its end."""


class LedgerAway(StorageAway, LedgerUnusable):
    """The ledger's database does not answer; waiting may help. Nothing may be released meanwhile."""


_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.1, 2.0
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def _outlasting(
    method: Callable[Concatenate[Ledger, _Arguments], _Result],
) -> Callable[Concatenate[Ledger, _Arguments], _Result]:
    """Ask again while the database is away, as long as the ledger is patient: no call here does anything twice."""

    @wraps(method)
    def patiently(self: Ledger, /, *arguments: _Arguments.args, **named: _Arguments.kwargs) -> _Result:
        deadline, delay = time.monotonic() + self.patience_seconds, _FIRST_WAIT_SECONDS
        while True:
            try:
                return method(self, *arguments, **named)
            except LedgerAway:
                if time.monotonic() + delay > deadline or self.closing.wait(delay):
                    raise
            delay = min(2 * delay, _LONGEST_WAIT_SECONDS)

    return patiently


@dataclass(frozen=True)
class Budget:
    """What a run may spend on any one record's label."""

    epsilon: float
    """Largest ε; infinity only for a run whose labels are not protected."""
    delta: float = 0.0
    """δ at which ε is read; 0 means that pure ε is added up."""


@dataclass(frozen=True, eq=False)
class Charge:
    """What a block of releases costs."""

    event: Release
    """One release of one record."""
    recipients: tuple[str, ...]
    """Who gets something that was computed from it."""
    counts: RecordCounts
    """For each record, in how many releases of the block it is."""
    content: bytes = b""
    """What leaves, where a release must never leave in another form: the same noise on two values gives them away."""
    account: DatasetCharge | None = None
    """The data set that is charged together with the run; None where the run's own budget is all there is."""

    @property
    def digest(self) -> str:
        """Over the counts and the content: tells a replay from another charge."""
        return sha256(_packed(self.counts) + self.content).hexdigest()


@dataclass(frozen=True)
class Entry:
    """One row of the ledger."""

    run: str
    sequence: int
    time: str
    """UTC, ISO 8601."""
    kind: str
    """`reserve` (a block of protected releases) or `unprotected`."""
    mechanism: str
    """The event, in one canonical line."""
    recipients: str
    """Names, as a JSON list."""
    first_release: int
    release_count: int
    records: int
    """How many records the block touches."""
    epsilon: float
    """ε of the whole run after this entry, at `delta`."""
    delta: float
    largest_count: int
    """max_i R_i of this mechanism after this entry."""
    charge_hash: str
    """Over the block's own per-record counts, so that a replay can be told from another charge."""
    counters_hash: str
    """Over the per-record counters of all mechanisms after this entry."""
    previous_hash: str
    hash: str = field(default="")

    def sealed(self) -> Entry:
        """Return the entry with its hash, over every other column."""
        fields = {name: value for name, value in asdict(self).items() if name != "hash"}
        # floats go in as hex: one text for one value, on every database
        exact = {name: value.hex() if isinstance(value, float) else value for name, value in fields.items()}
        text = json.dumps(exact, sort_keys=True, separators=(",", ":"))
        return replace(self, hash=sha256(text.encode()).hexdigest())


@dataclass(frozen=True)
class Head:
    """Where a run's chain ends."""

    length: int
    hash: str


def open_ledger(url: str) -> Ledger:
    """Return the ledger at a database URL, with durable commits on SQLite.

    Raises:
        LedgerUnusable: if the database cannot be opened, is damaged, or is none.
        DatabaseRefused: if a newer version of this program has written it.
    """
    return Ledger(open_engine(url))


class Ledger:
    """Budgets and debits of runs. Held by the party whose labels (or data) it protects."""

    def __init__(self, engine: sa.Engine, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._engine = engine
        self._clock = clock
        self._covered: dict[str, list[range]] = {}
        self.patience_seconds = 0.0
        self.closing = threading.Event()
        with self._named_failures():
            upgrade(engine, HISTORY)

    def patient(self, seconds: float) -> Ledger:
        """Return the same ledger for a caller that waits so long for a database that is away."""
        view = copy.copy(self)
        view.patience_seconds = seconds
        return view

    def close(self) -> None:
        """Give the database connections back; whoever waits for the database gives up."""
        self.closing.set()
        self._engine.dispose()

    @_outlasting
    def open_run(
        self,
        run: str,
        records: int,
        budget: Budget,
        data_digest: str | None = None,
        dataset: str | None = None,
    ) -> None:
        """Start a run's chain. A repeated call with the same terms is a no-op; with others it is refused.

        `data_digest` says what the records are: a run that goes on draws the same noise again, and with other values
        under it both would show. `dataset` is the data set that its charges go to as well.
        """
        if not budget.epsilon > 0 or not 0 <= budget.delta < 1:
            raise LedgerConflict("A budget has epsilon > 0 and 0 ≤ delta < 1; correct the run's spec.")
        asked = (records, float(budget.epsilon), float(budget.delta))
        try:
            found = self._opened(run, *asked)
        except sa.exc.IntegrityError:  # another writer opened it in between: compare with its terms
            found = self._opened(run, *asked)
        if found != asked:
            raise LedgerConflict(f"Run {run!r} was opened with other terms; give the changed run a new name.")
        if dataset is not None:
            self._check_dataset(run, dataset)
        if data_digest is not None:
            self._check_data(run, data_digest)

    @_outlasting
    def budget_of(self, run: str) -> Budget | None:
        """What a run may spend; None if it was never opened."""
        with self._reading() as connection:
            found = connection.execute(sa.select(heads).where(heads.c.run == run)).mappings().first()
        return None if found is None else Budget(found["budget_epsilon"], found["budget_delta"])

    @_outlasting
    def datasets(self) -> list[str]:
        """Return the data sets that runs were charged to."""
        with self._reading() as connection:
            return dataset_names(connection)

    @_outlasting
    def account(self, dataset: str, terms: DatasetTerms) -> Account:
        """Return what a data set has spent over all runs, as its owner's terms read it.

        Raises:
            DatasetUnknown: if nothing was charged to it.
        """
        with self._reading() as connection:
            return account_of(connection, dataset, terms)

    @_outlasting
    def verify_account(self, dataset: str) -> str:
        """Check the chain of a data set's account; return its last hash.

        Raises:
            AccountBroken: if a link does not hold.
        """
        with self._reading() as connection:
            return verify_account(connection, dataset)

    @_outlasting
    def reserve(self, run: str, first_release: int, count: int, charge: Charge) -> Entry:
        """Debit the block of releases first_release … first_release+count−1, durably, before any of them is made.

        A block that is already there is returned as it is and costs nothing. Raises BudgetExhausted, before anything is
        written, if the run would pass its budget.
        """
        block = range(first_release, first_release + count)
        if first_release < 0 or count < 1:
            raise LedgerConflict("A block starts at release 0 or later and holds at least one.")
        if charge.counts.counts.min(initial=0) < 0 or charge.counts.maximum > count:
            raise LedgerConflict(f"A record is in 0 … {count} of the block's releases; count the batches again.")
        with self._writing() as connection:
            head = self._locked_head(connection, run)
            earlier = self._overlapping(connection, run, block)
            if earlier is not None:
                _require_same(earlier, block, charge)
                entry = earlier
            else:
                entry = self._append(connection, head, block, charge)
                if charge.account is not None:  # in the same transaction: both are charged, or neither
                    charge_dataset(connection, run, charge.event, charge.counts, charge.account, entry.time)
        self._covered.setdefault(run, []).append(block)
        return entry

    @_outlasting
    def rehearse(self, run: str, charge: Charge) -> None:
        """Refuse what `reserve` would refuse for the sake of the charge's data set; nothing is written."""
        assert charge.account is not None  # noqa: S101 (there is nothing to rehearse without one)
        with suppress(_Rehearsed), self._writing() as connection:
            open_account(connection, charge.account.tags.dataset)
            time = self._clock().isoformat()
            charge_dataset(connection, run, charge.event, charge.counts, charge.account, time)
            raise _Rehearsed  # which takes everything back

    @_outlasting
    def covers(self, run: str, release: int) -> bool:
        """Say whether a release is paid for. Answers from memory when this process has made or seen the reservation."""
        if self.knows_paid(run, release):
            return True
        with self._reading() as connection:
            entry = self._overlapping(connection, run, range(release, release + 1))
        if entry is None:
            return False
        self._covered.setdefault(run, []).append(_block(entry))
        return True

    def knows_paid(self, run: str, release: int) -> bool:
        """Say whether this process has made or seen the reservation of a release. Never asks the database."""
        return any(release in block for block in reversed(self._covered.get(run, [])))

    @_outlasting
    def allotted(self, but: str) -> float:
        """Return the sum of the budgets of all runs but one, without those that a data set's own budget covers."""
        with self._reading() as connection:
            total = sa.func.coalesce(sa.func.sum(heads.c.budget_epsilon), 0.0)
            counted = sa.select(total).where(heads.c.run != but, heads.c.dataset.is_(None))
            return float(connection.execute(counted).scalar_one())

    @_outlasting
    def runs(self) -> dict[str, Budget]:
        """Return every run of the ledger, by name, with what it may spend."""
        query = sa.select(heads.c.run, heads.c.budget_epsilon, heads.c.budget_delta).order_by(heads.c.run)
        with self._reading() as connection:
            return {run: Budget(epsilon, delta) for run, epsilon, delta in connection.execute(query)}

    @_outlasting
    def entries(self, run: str) -> list[Entry]:
        """Return a run's entries in order.

        Raises:
            LedgerBroken: if they cannot be read.
        """
        try:
            with self._reading() as connection:
                return _entries(connection, run)
        except LedgerAway:
            raise
        except LedgerUnusable as error:
            raise LedgerBroken(f"Run {run!r}: {error}") from error

    @_outlasting
    def newest(self, run: str) -> tuple[Entry, Budget] | None:
        """Return a run's last entry and its budget; None if it has released nothing. Reads two rows."""
        query = sa.select(entries).where(entries.c.run == run).order_by(entries.c.sequence.desc()).limit(1)
        with self._reading() as connection:
            row = connection.execute(query).mappings().first()
            if row is None:
                return None
            head = _head_row(connection, run)
        return Entry(**row), Budget(head["budget_epsilon"], head["budget_delta"])

    @_outlasting
    def counts(self, run: str) -> Counters:
        """Return the per-record counters R_i of each mechanism."""
        with self._reading() as connection:
            return _read_counters(connection, run)

    @_outlasting
    def spent(self, run: str) -> float:
        """Return the ε that the run has spent so far, at its budget's δ; for reports, so by the best accountant.

        Where several mechanisms were used the largest counts of each are added up, an upper bound for every record.
        """
        with self._reading() as connection:
            head = _head_row(connection, run)
            return reported_epsilon(_total(_read_counters(connection, run)), head["budget_delta"])

    @_outlasting
    def head(self, run: str) -> Head:
        """Return where the chain ends; keep it elsewhere to detect a rewritten ledger."""
        with self._reading() as connection:
            row = _head_row(connection, run)
            return Head(row["length"], row["hash"])

    @_outlasting
    def verify(self, run: str, expected: Head | None = None) -> Head:
        """Check the whole chain; raise LedgerBroken naming the first link that does not hold.

        `expected`, a head that was kept elsewhere, must still be in the chain: it catches a ledger that was rewritten
        as a whole.
        """
        try:
            with self._reading() as connection:
                found = _entries(connection, run)
                head = _whole_head(connection, run, found)
                digest = _counters_hash(_raw_counters(connection, run))
        except LedgerAway:
            raise
        except LedgerUnusable as error:
            raise LedgerBroken(f"Run {run!r}: {error}") from error
        previous = _root(run, head["records"], head["budget_epsilon"], head["budget_delta"])
        hashes = [previous]
        for position, entry in enumerate(found):
            if entry.sequence != position:
                raise LedgerBroken(f"Run {run!r}: entry {position} is missing; {entry.sequence} stands in its place.")
            if entry.previous_hash != previous:
                raise LedgerBroken(f"Run {run!r}: entry {position} does not follow the one before it.")
            if entry.sealed().hash != entry.hash:
                raise LedgerBroken(f"Run {run!r}: entry {position} was changed after it was written.")
            previous = entry.hash
            hashes.append(previous)
        if head["length"] != len(found) or head["hash"] != previous:
            raise LedgerBroken(
                f"Run {run!r}: the chain ends after {len(found)} entries, its head says {head['length']}; "
                f"entry {min(len(found), head['length'])} is the first to differ."
            )
        if found and found[-1].counters_hash != digest:
            raise LedgerBroken(f"Run {run!r}: the per-record counters are not those of entry {len(found) - 1}.")
        if not found and digest != _counters_hash([]):
            raise LedgerBroken(f"Run {run!r}: there are per-record counters but no entry.")
        if expected is not None and (expected.length > len(found) or hashes[expected.length] != expected.hash):
            raise LedgerBroken(
                f"Run {run!r}: the head kept elsewhere ({expected.length} entries) is not in this chain."
            )
        return Head(len(found), previous)

    def _opened(self, run: str, records: int, epsilon: float, delta: float) -> tuple[int, float, float]:
        """Return the terms under which a run is open, opening it under these if it is new."""
        with self._writing() as connection:
            found = connection.execute(sa.select(heads).where(heads.c.run == run)).mappings().first()
            if found is not None:
                return found["records"], found["budget_epsilon"], found["budget_delta"]
            root = _root(run, records, epsilon, delta)
            terms = {"records": records, "budget_epsilon": epsilon, "budget_delta": delta}
            connection.execute(heads.insert().values(run=run, length=0, hash=root, **terms))
            return records, epsilon, delta

    def _check_dataset(self, run: str, dataset: str) -> None:
        try:
            found = self._bound_dataset(run, dataset)
        except sa.exc.IntegrityError:  # another writer opened the account in between
            found = self._bound_dataset(run, dataset)
        if found is None:
            raise LedgerConflict(
                f"Run {run!r} began under a version that drew label noise for each run, and going on would draw it a "
                "second time: start a new run."
            )
        if found != dataset:
            raise LedgerConflict(f"Run {run!r} was charged to {found!r}, not to {dataset!r}: start a new run.")

    def _bound_dataset(self, run: str, dataset: str) -> str | None:
        """The data set that a run is charged to: this one, if the run has released nothing yet."""
        with self._writing() as connection:
            open_account(connection, dataset)
            head = self._locked_head(connection, run)
            if head["dataset"] is not None or head["length"]:
                return str(head["dataset"]) if head["dataset"] is not None else None
            connection.execute(heads.update().where(heads.c.run == run).values(dataset=dataset))
            return dataset

    def _check_data(self, run: str, digest: str) -> None:
        with self._writing() as connection:
            known = connection.execute(sa.select(heads.c.data_digest).where(heads.c.run == run)).scalar_one()
            if known is None:
                connection.execute(heads.update().where(heads.c.run == run).values(data_digest=digest))
        if known not in (None, digest):
            raise DataChanged(
                f"The labels of run {run!r} changed since it began, and the same noise over other labels would show "
                "both: bring the old ones back, or start a new run."
            )

    def _append(self, connection: sa.Connection, head: sa.RowMapping, block: range, charge: Charge) -> Entry:
        run, mechanism = head["run"], to_json(charge.event)
        if charge.counts.counts.size != head["records"]:
            raise LedgerConflict(
                f"Run {run!r} has {head['records']} records, the charge counts {charge.counts.counts.size}."
            )
        before = _read_counters(connection, run)
        after = {**before, mechanism: before.get(mechanism, RecordCounts.none(head["records"])).plus(charge.counts)}
        epsilon = online_epsilon(_total(after), head["budget_delta"])
        if epsilon > head["budget_epsilon"] or math.isnan(epsilon):
            raise BudgetExhausted(
                f"Releases {block.start} … {block.stop - 1} would bring run {run!r} to epsilon {epsilon:.6g}, "
                f"past its budget of {head['budget_epsilon']:.6g} at delta {head['budget_delta']:g}; "
                "stop here and keep the model, or agree on a larger budget in a new run."
            )
        blobs = {name: _packed(counts) for name, counts in after.items()}
        entry = Entry(
            run=run,
            sequence=head["length"],
            time=self._clock().isoformat(),
            kind="unprotected" if isinstance(charge.event, Unprotected) else "reserve",
            mechanism=mechanism,
            recipients=_recipients(charge),
            first_release=block.start,
            release_count=len(block),
            records=int(np.count_nonzero(charge.counts.counts)),
            epsilon=epsilon,
            delta=head["budget_delta"],
            largest_count=after[mechanism].maximum,
            charge_hash=charge.digest,
            counters_hash=_counters_hash(sorted(blobs.items())),
            previous_hash=head["hash"],
        ).sealed()
        connection.execute(entries.insert().values(**asdict(entry)))
        connection.execute(counters.delete().where(counters.c.run == run, counters.c.mechanism == mechanism))
        connection.execute(counters.insert().values(run=run, mechanism=mechanism, counts=blobs[mechanism]))
        connection.execute(heads.update().where(heads.c.run == run).values(length=head["length"] + 1, hash=entry.hash))
        return entry

    def _locked_head(self, connection: sa.Connection, run: str) -> sa.RowMapping:
        row = connection.execute(sa.select(heads).where(heads.c.run == run).with_for_update()).mappings().first()
        if row is None:
            raise RunNotOpen(f"The ledger has no run {run!r}; open it with its budget first.")
        return row

    def _overlapping(self, connection: sa.Connection, run: str, block: range) -> Entry | None:
        """Return the first entry that shares a release with `block`."""
        query = (
            sa.select(entries)
            .where(
                entries.c.run == run,
                entries.c.first_release < block.stop,
                entries.c.first_release + entries.c.release_count > block.start,
            )
            .order_by(entries.c.sequence)
            .limit(1)
        )
        row = connection.execute(query).mappings().first()
        return None if row is None else Entry(**row)

    @contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        with self._named_failures(), self._engine.connect() as connection:
            yield connection

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        with self._named_failures(), write_transaction(self._engine) as connection:
            yield connection

    @contextmanager
    def _named_failures(self) -> Iterator[None]:
        try:
            with named_failures("the ledger", self._engine):
                yield
        except StorageFailed as failure:
            kind = LedgerAway if isinstance(failure, StorageAway) else LedgerUnusable
            raise kind(f"{failure}; nothing was released") from failure


def _total(counts: Counters) -> Event:
    return Together(tuple(Composed(from_json(name), each.maximum) for name, each in sorted(counts.items())))


def _block(entry: Entry) -> range:
    return range(entry.first_release, entry.first_release + entry.release_count)


def _recipients(charge: Charge) -> str:
    return json.dumps(sorted(charge.recipients))


def _require_same(entry: Entry, block: range, charge: Charge) -> None:
    asked = (block, to_json(charge.event), _recipients(charge), charge.digest)
    if asked != (_block(entry), entry.mechanism, entry.recipients, entry.charge_hash):
        raise LedgerConflict(
            f"Releases {block.start} … {block.stop - 1} of run {entry.run!r} meet entry {entry.sequence} "
            f"({_block(entry).start} … {_block(entry).stop - 1}), which reserved something else; "
            "a release is charged once and never under other terms."
        )


def _entries(connection: sa.Connection, run: str) -> list[Entry]:
    query = sa.select(entries).where(entries.c.run == run).order_by(entries.c.sequence)
    rows = list(connection.execute(query).mappings())
    for position, row in enumerate(rows):
        _require_kinds(entries, row, f"Run {run!r}: entry {position}")
    return [Entry(**row) for row in rows]


def _require_kinds(table: sa.Table, row: sa.RowMapping, what: str) -> None:
    """A damaged file may hold bytes where a text was written: SQLite keeps a value's type with the value."""
    for column in table.columns:
        absent = row[column.name] is None and column.nullable
        if not absent and not isinstance(row[column.name], column.type.python_type):
            raise LedgerBroken(f"{what} holds a value in {column.name} that was never written there.")


def _whole_head(connection: sa.Connection, run: str, found: list[Entry]) -> sa.RowMapping:
    """The head of a run's chain; entries without one are a broken chain, not a run that was never opened."""
    try:
        head = _head_row(connection, run)
    except RunNotOpen:
        if not found:
            raise
        raise LedgerBroken(f"Run {run!r}: there are {len(found)} entries, but the chain has no head.") from None
    _require_kinds(heads, head, f"Run {run!r}: the head")
    return head


def _head_row(connection: sa.Connection, run: str) -> sa.RowMapping:
    row = connection.execute(sa.select(heads).where(heads.c.run == run)).mappings().first()
    if row is None:
        raise RunNotOpen(f"The ledger has no run {run!r}; open it with its budget first.")
    return row


def _raw_counters(connection: sa.Connection, run: str) -> list[tuple[str, bytes]]:
    rows = connection.execute(sa.select(counters).where(counters.c.run == run)).mappings().all()
    for row in rows:
        _require_kinds(counters, row, f"Run {run!r}: a counter")
    return sorted((row["mechanism"], bytes(row["counts"])) for row in rows)


def _read_counters(connection: sa.Connection, run: str) -> Counters:
    return {mechanism: _unpacked(counts) for mechanism, counts in _raw_counters(connection, run)}


def _packed(counts: RecordCounts) -> bytes:
    return zlib.compress(counts.counts.astype("<u4").tobytes(), level=1)


def _unpacked(blob: bytes) -> RecordCounts:
    values: NDArray[np.int64] = np.frombuffer(zlib.decompress(blob), dtype="<u4").astype(np.int64)
    return RecordCounts(values)


def _counters_hash(blobs: list[tuple[str, bytes]]) -> str:
    digest = sha256()
    for mechanism, blob in blobs:
        for part in (mechanism.encode(), blob):
            digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


def _root(run: str, records: int, budget_epsilon: float, budget_delta: float) -> str:
    """The hash before the first entry: it binds the chain to the run's name and terms."""
    terms = [run, records, float(budget_epsilon).hex(), float(budget_delta).hex()]
    return sha256(json.dumps(terms).encode()).hexdigest()
