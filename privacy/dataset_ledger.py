"""The account of a data set: one budget for all runs over the same records.

A run's chain (ledger.py) says what that run released. This says what all runs together have released of each record,
and refuses what would pass the budget of the data set, in the transaction that charges the run: both are charged, or
neither.

    drawn once     a record is charged when its noise is first drawn; runs that draw the same noise again cost nothing
    drawn anew     every release of a record is charged

A record is an identity with its value (permanent_noise.py), by keyed tags. A value that has changed is another record
of the same identity: it is refused, or, where the owner says so, charged on top of what the identity has spent before.
Releases without noise cannot be charged: the account says how many runs made them, or refuses them.

The chain of entries is like a run's. The counters of all records are covered by the newest entry's hash.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from typing import Literal

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from parley.privacy.accounting import Composed, Event, RecordCounts, Release, Together, Unprotected, from_json, to_json
from parley.privacy.filters import filtered_epsilon
from parley.privacy.ledger_tables import account_counters, account_entries, account_heads
from parley.privacy.permanent_noise import TAG_BYTES, RecordTags, Tags

FRESH = ""
"""The draw of noise that every release draws anew."""

Counts = NDArray[np.int64]


class BudgetExhausted(RuntimeError):
    """A charge would pass a budget; nothing was written and nothing may be released."""


class RecordsChanged(ValueError):
    """Records that were released before have other values now, and the owner has not said that this may be charged."""


class UnprotectedRefused(ValueError):
    """A release without noise of a data set whose owner allows none."""


class DatasetUnknown(LookupError):
    """The ledger has no account of this data set."""


class AccountBroken(RuntimeError):
    """The chain of a data set's account does not verify."""


@dataclass(frozen=True)
class DatasetTerms:
    """What the owner of a data set allows over all runs."""

    epsilon: float = 10.0
    """Largest ε of any one record."""
    delta: float = 1e-6
    """δ at which ε is read; 0 adds up pure ε only."""
    changed: Literal["refuse", "charge"] = "refuse"
    """What becomes of a record whose value has changed since it was released."""
    unprotected: Literal["refuse", "allow"] = "allow"
    """Whether a run may release values without noise; the account says so for ever."""


@dataclass(frozen=True)
class DatasetCharge:
    """Which records a charge is about, and whether their noise is drawn anew."""

    terms: DatasetTerms
    tags: RecordTags
    draw: str = FRESH
    """Name of the permanent draw; `FRESH` where each release draws its own noise."""


@dataclass(frozen=True)
class AccountEntry:
    """One row of a data set's account."""

    dataset: str
    sequence: int
    time: str
    run: str
    kind: str
    """`charge`, `reuse` (noise that was drawn before) or `unprotected`."""
    mechanism: str
    draw: str
    records: int
    """How many records the charge is about."""
    charged: int
    """For how many of them it cost anything."""
    epsilon: float
    """ε of the data set after this entry, without what was released unprotected."""
    delta: float
    budget_epsilon: float
    counters_hash: str
    previous_hash: str
    hash: str = field(default="")

    def sealed(self) -> AccountEntry:
        """Return the entry with its hash, over every other column."""
        fields = {name: value for name, value in asdict(self).items() if name != "hash"}
        exact = {name: value.hex() if isinstance(value, float) else value for name, value in fields.items()}
        text = json.dumps(exact, sort_keys=True, separators=(",", ":"))
        return replace(self, hash=sha256(text.encode()).hexdigest())


@dataclass(frozen=True)
class Account:
    """What a data set has spent."""

    dataset: str
    epsilon: float
    """Over all runs, without what was released unprotected; at `delta`."""
    delta: float
    records: int
    """Records that were ever released."""
    unprotected_runs: tuple[str, ...]
    """Runs that released values without noise."""
    by_run: dict[str, float]
    """By how much each run raised ε; 0 for a run that drew the same noise again."""


def charge_dataset(
    connection: sa.Connection, run: str, event: Release, counts: RecordCounts, charge: DatasetCharge, time: str
) -> None:
    """Charge the releases of a run to its data set, in the caller's transaction.

    Raises:
        BudgetExhausted: if a record would pass the data set's budget.
        RecordsChanged: if a record was released with another value.
        UnprotectedRefused: if there is no noise and the owner allows no such release.
    """
    name, terms = charge.tags.dataset, charge.terms
    head = _locked(connection, name)
    if isinstance(event, Unprotected):
        if terms.unprotected == "refuse":
            raise UnprotectedRefused(
                f"The labels of {name!r} may not be released without noise: give the run `privacy.labels` with an "
                "epsilon, or ask their owner to allow it."
            )
        if not _has_unprotected(connection, name, run):
            _append(connection, head, run, "unprotected", event, charge, counts, 0, time)
        return
    touched = np.flatnonzero(counts.counts)
    state = _State.read(connection, head)
    places = state.places(charge.tags.records[touched], charge.tags.identities[touched], name, terms.changed)
    key = (to_json(event), charge.draw)
    earlier = state.counters.get(key, np.zeros(len(state), dtype=np.int64))
    after = np.zeros(len(state), dtype=np.int64)
    after[: len(earlier)] = earlier
    if charge.draw == FRESH:
        after[places] += counts.counts[touched]
    else:
        after[places] = 1
    charged = int(np.count_nonzero(after[: len(earlier)] != earlier) + np.count_nonzero(after[len(earlier) :]))
    state.counters[key] = after
    spent = filtered_epsilon(state.total(), terms.epsilon, terms.delta)
    if charged and not spent <= terms.epsilon:
        raise BudgetExhausted(
            f"Run {run!r} would bring the data set {name!r} to epsilon {spent:.6g} over all runs, past its budget of "
            f"{terms.epsilon:.6g} at delta {terms.delta:g}: train at an epsilon that was used before, whose noise is "
            "drawn already and costs nothing, or ask the owner of the data to raise the budget."
        )
    if charged:
        state.write(connection, name, key)
    kind = "charge" if charged else "reuse"
    _append(connection, head, run, kind, event, charge, counts, charged, time, state)


def open_account(connection: sa.Connection, dataset: str) -> None:
    """Open the account of a data set, if it has none yet."""
    query = sa.select(account_heads.c.dataset).where(account_heads.c.dataset == dataset)
    if connection.execute(query).first() is None:
        empty = {"length": 0, "hash": _root(dataset), "records": zlib.compress(b"")}
        connection.execute(account_heads.insert().values(dataset=dataset, **empty))


def account_of(connection: sa.Connection, dataset: str, terms: DatasetTerms) -> Account:
    """What a data set has spent, read under its owner's terms."""
    head = _head(connection, dataset)
    state = _State.read(connection, head)
    rows = account_rows(connection, dataset)
    by_run: dict[str, float] = {}
    before = 0.0
    for row in rows:
        by_run[row.run] = by_run.get(row.run, 0.0) + max(0.0, row.epsilon - before)
        before = row.epsilon
    unprotected = tuple(dict.fromkeys(row.run for row in rows if row.kind == "unprotected"))
    spent = filtered_epsilon(state.total(), terms.epsilon, terms.delta)
    return Account(dataset, spent, terms.delta, len(state), unprotected, by_run)


def account_rows(connection: sa.Connection, dataset: str) -> list[AccountEntry]:
    """Every entry of a data set's account, in order."""
    query = sa.select(account_entries).where(account_entries.c.dataset == dataset).order_by(account_entries.c.sequence)
    return [AccountEntry(**row) for row in connection.execute(query).mappings()]


def dataset_names(connection: sa.Connection) -> list[str]:
    """Every data set that has an account."""
    return list(connection.execute(sa.select(account_heads.c.dataset).order_by(account_heads.c.dataset)).scalars())


def verify_account(connection: sa.Connection, dataset: str) -> str:
    """Check the chain of a data set's account and return its last hash.

    Raises:
        AccountBroken: if an entry was changed or removed, or the counters are not those of the last one.
    """
    head, previous = _head(connection, dataset), _root(dataset)
    rows = account_rows(connection, dataset)
    for position, row in enumerate(rows):
        if row.sequence != position or row.previous_hash != previous:
            raise AccountBroken(f"Data set {dataset!r}: entry {position} does not follow the one before it.")
        if row.sealed().hash != row.hash:
            raise AccountBroken(f"Data set {dataset!r}: entry {position} was changed after it was written.")
        previous = row.hash
    if (head["length"], head["hash"]) != (len(rows), previous):
        raise AccountBroken(f"Data set {dataset!r}: the chain ends after {len(rows)} entries, not {head['length']}.")
    if rows and rows[-1].counters_hash != _State.read(connection, head).digest():
        raise AccountBroken(f"Data set {dataset!r}: the counters are not those of entry {len(rows) - 1}.")
    return previous


@dataclass
class _State:
    """Every record that was released, and how often under which noise."""

    tags: Tags
    """Identity and record of each, 32 bytes."""
    counters: dict[tuple[str, str], Counts]

    @staticmethod
    def read(connection: sa.Connection, head: sa.RowMapping) -> _State:
        blob = zlib.decompress(head["records"])
        tags = np.frombuffer(blob, dtype=np.uint8).reshape(-1, 2 * TAG_BYTES)
        query = sa.select(account_counters).where(account_counters.c.dataset == head["dataset"])
        rows = connection.execute(query).mappings()
        return _State(tags, {(row["mechanism"], row["draw"]): _unpacked(row["counts"]) for row in rows})

    def __len__(self) -> int:
        return len(self.tags)

    def places(self, records: Tags, identities: Tags, dataset: str, changed: str) -> Counts:
        """Where the records stand; those that are new are added at the end."""
        places = _found(self.tags[:, TAG_BYTES:], records)
        new = np.flatnonzero(places < 0)
        if not new.size:
            return places
        if changed == "refuse":
            other = int(np.count_nonzero(_found(self.tags[:, :TAG_BYTES], identities[new]) >= 0))
            if other:
                raise RecordsChanged(
                    f"{other} records of {dataset!r} were released with another label than they have now: bring the "
                    "old labels back, leave those records out, or ask the owner of the labels to set "
                    "`changed_labels: charge`, which charges them again."
                )
        places[new] = len(self) + np.arange(new.size)
        tags = np.empty((len(self) + new.size, 2 * TAG_BYTES), dtype=np.uint8)
        tags[: len(self)] = self.tags
        tags[len(self) :, :TAG_BYTES], tags[len(self) :, TAG_BYTES:] = identities[new], records[new]
        self.tags = tags
        return places

    def total(self) -> Event:
        """What the record that was released most often under each noise has lost: an upper bound for every one."""
        parts = [Composed(from_json(name), self._most(each)) for (name, _), each in sorted(self.counters.items())]
        return Together(tuple(parts))

    def _most(self, counts: Counts) -> int:
        """The largest count of one identity, over all values that it had."""
        if not counts.any():
            return 0
        people, group = np.unique(_numbers(self.tags[: len(counts), :TAG_BYTES]), return_inverse=True)
        if len(people) == len(counts):
            return int(counts.max())
        return int(np.bincount(group, weights=counts).max())

    def digest(self) -> str:
        """Over all tags and counters."""
        digest = sha256(np.ascontiguousarray(self.tags).data)
        for (name, draw), counts in sorted(self.counters.items()):
            for part in (name.encode(), draw.encode(), counts.astype("<u4").tobytes()):
                digest.update(len(part).to_bytes(8, "big") + part)
        return digest.hexdigest()

    def write(self, connection: sa.Connection, dataset: str, key: tuple[str, str]) -> None:
        """Store the tags and the counters of one mechanism."""
        mechanism, draw = key
        same = sa.and_(
            account_counters.c.dataset == dataset,
            account_counters.c.mechanism == mechanism,
            account_counters.c.draw == draw,
        )
        connection.execute(account_counters.delete().where(same))
        blob = zlib.compress(self.counters[key].astype("<u4").tobytes(), level=1)
        connection.execute(
            account_counters.insert().values(dataset=dataset, mechanism=mechanism, draw=draw, counts=blob)
        )
        # Tags look random: there is nothing to compress.
        records = zlib.compress(np.ascontiguousarray(self.tags).data, level=0)
        connection.execute(account_heads.update().where(account_heads.c.dataset == dataset).values(records=records))


def _append(
    connection: sa.Connection,
    head: sa.RowMapping,
    run: str,
    kind: str,
    event: Release,
    charge: DatasetCharge,
    counts: RecordCounts,
    charged: int,
    time: str,
    state: _State | None = None,
) -> None:
    state, terms = state or _State.read(connection, head), charge.terms
    entry = AccountEntry(
        dataset=head["dataset"],
        sequence=head["length"],
        time=time,
        run=run,
        kind=kind,
        mechanism=to_json(event),
        draw=charge.draw,
        records=int(np.count_nonzero(counts.counts)),
        charged=charged,
        epsilon=filtered_epsilon(state.total(), terms.epsilon, terms.delta),
        delta=terms.delta,
        budget_epsilon=terms.epsilon,
        counters_hash=state.digest(),
        previous_hash=head["hash"],
    ).sealed()
    connection.execute(account_entries.insert().values(**asdict(entry)))
    connection.execute(
        account_heads.update()
        .where(account_heads.c.dataset == head["dataset"])
        .values(length=head["length"] + 1, hash=entry.hash)
    )


def _locked(connection: sa.Connection, dataset: str) -> sa.RowMapping:
    """The head of an account, locked until the transaction ends."""
    query = sa.select(account_heads).where(account_heads.c.dataset == dataset).with_for_update()
    return _known(connection.execute(query).mappings().first(), dataset)


def _head(connection: sa.Connection, dataset: str) -> sa.RowMapping:
    query = sa.select(account_heads).where(account_heads.c.dataset == dataset)
    return _known(connection.execute(query).mappings().first(), dataset)


def _known(row: sa.RowMapping | None, dataset: str) -> sa.RowMapping:
    if row is None:
        raise DatasetUnknown(f"The ledger has no data set {dataset!r}: nothing of it was released.")
    return row


def _has_unprotected(connection: sa.Connection, dataset: str, run: str) -> bool:
    query = sa.select(account_entries.c.sequence).where(
        account_entries.c.dataset == dataset, account_entries.c.run == run, account_entries.c.kind == "unprotected"
    )
    return connection.execute(query.limit(1)).first() is not None


def _root(dataset: str) -> str:
    return sha256(json.dumps(["account", dataset]).encode()).hexdigest()


def _found(tags: Tags, wanted: Tags) -> Counts:
    """The place of each wanted tag among `tags`, −1 where it is not there."""
    if not len(tags):
        return np.full(len(wanted), -1, dtype=np.int64)
    numbers = _numbers(tags)
    order = np.argsort(numbers, kind="stable")
    nearest = order[np.minimum(np.searchsorted(numbers[order], _numbers(wanted)), len(order) - 1)]
    return np.where((tags[nearest] == wanted).all(axis=1), nearest, -1).astype(np.int64)


def _numbers(tags: Tags) -> NDArray[np.uint64]:
    """The first half of each tag, by which tags are sorted; the whole of it decides."""
    return np.ascontiguousarray(tags[:, :8]).view("<u8").reshape(-1)


def _unpacked(blob: bytes) -> Counts:
    return np.frombuffer(zlib.decompress(blob), dtype="<u4").astype(np.int64)
