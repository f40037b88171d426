"""The register of exposure: what was summed over which rows, columns and partners, in all runs that this party served.

A secure sum hides its addends, and two sums that differ by one addend give it away. A session sees its own sums alone,
so the party remembers: an entry is durable before the first sum of a run leaves, and sums are counted in blocks ahead.
"""

import functools
import logging
import os
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import ceil
from typing import Literal

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from parley.services.party.config import Policy
from parley.services.party.exposure_tables import (
    ANY_SEED,
    HISTORY,
    Exposure,
    RowHashes,
    entries_table,
    from_record,
    row_hashes,
    rows_table,
)
from parley.storage.engines import open_engine, write_transaction
from parley.storage.failures import StorageFailed, named_failures
from parley.storage.migrations import upgrade

BLOCK = 256
"""Sums that are counted at once, before the first of them leaves."""
logger = logging.getLogger(__name__)


class ExposureRefused(PermissionError):
    """Together with what left before, the run would tell more than the owner allows."""


@dataclass(frozen=True)
class Reviewed:
    """What the register says of a run that may begin."""

    salt: str = ""
    """For the names of this party's own batches."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Asked:
    """A run that asks to begin: what it would expose, and how much as its algorithm foretells."""

    exposure: Exposure
    ids: NDArray[np.str_]
    """Of the rows."""
    sums_per_row: int
    """Foretold for the whole run."""
    own_batches: bool
    """Whether a salt changes what is summed."""
    further: tuple["Asked", ...] = ()
    """The same of other tables that it reads, such as checked rows; their sums are those of the run's own."""

    @functools.cached_property
    def hashes(self) -> RowHashes:
        """Of the ids: seconds for millions of rows."""
        return row_hashes(self.ids)


OTHER_SCALES = "other scales of the same columns"


def difference(new: Exposure, old: Exposure) -> str | None:
    """How the sums of two runs over common rows could be subtracted, in words; None where they could not.

    Where blocks are linear, sums determine A·Aᵀ whatever the seed was: two runs that differ by a column or by a party
    differ by that column, or by that party's Gram matrix; two that differ by the scales of columns have the columns as
    their common axes, U·D₁·Uᵀ and U·D₂·Uᵀ, which gives them all. Elsewhere the first sums of two runs with one seed are
    of the same values, and differ by a whole party; so do those with any seed where it changes little of what is
    summed. Where a value is made from many rows, two that were made from nearly the same rows differ by the others.
    """
    if not (new.exact and old.exact) or new.table != old.table or "judged" in (new.layout, old.layout):
        return None
    other_rows = (new.rows_digest, new.drawn) != (old.rows_digest, old.drawn)
    if "figures" in (new.layout, old.layout):
        return "figures over some of the same rows" if new.layout == old.layout and other_rows else None
    same_seed = new.seed == old.seed or ANY_SEED in (new.seed, old.seed)
    linear = new.rank is not None and old.rank is not None
    if new.columns != old.columns and (same_seed or linear):
        return "other columns of the same rows"
    if new.partners != old.partners and (same_seed or linear):
        return "other partners over the same rows"
    if linear and "" not in (new.drawn, old.drawn) and new.drawn != old.drawn:  # earlier versions kept none
        return OTHER_SCALES
    if new.layout == "horizontal" and other_rows and same_seed:
        return "some of the same rows" + (", with the same seed" if new.seed == old.seed else "")
    return None


class Register:
    """A party's memory of what it has exposed."""

    def __init__(
        self,
        engine: sa.Engine,
        sources: Mapping[str, str] | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._engine, self._clock = engine, clock
        self._sources = dict(sources or {})
        with self._named():
            upgrade(engine, HISTORY)

    def close(self) -> None:
        """Give the database connections back."""
        self._engine.dispose()

    def entries(self) -> list[Exposure]:
        """Everything that is registered, oldest first."""
        with self._named(), self._engine.connect() as connection:
            return _entries(connection)

    def review(self, asked: Asked, policy: Policy) -> Reviewed:
        """Whether a run may begin, as things stand; nothing is written.

        Raises:
            ExposureRefused: naming the floor, or the earlier run.
        """
        with self._named(), self._engine.connect() as connection:
            return self._reviewed(connection, asked, policy)

    def begin(self, asked: Asked, policy: Policy) -> Reviewed:
        """Review once more and write the entry, in one transaction; a run that goes on finds its own."""
        with self._named(), self._engine.connect() as connection:
            unknown = [each for each in (*asked.further, asked) if not _knows(connection, each.exposure.rows_digest)]
        for each in unknown:
            _ = each.hashes  # before the database is locked
        with self._named(), write_transaction(self._engine) as connection:
            reviewed = self._reviewed(connection, asked, policy)
            for each in (*asked.further, asked):
                if _own(_entries(connection), each.exposure) is None:
                    _keep_rows(connection, each)
                    number = connection.scalar(sa.select(sa.func.coalesce(sa.func.max(entries_table.c.number), 0))) or 0
                    entry = replace(each.exposure, salt=reviewed.salt, time=self._clock().isoformat(timespec="seconds"))
                    connection.execute(entries_table.insert().values(number=number + 1, **entry.record()))
            return reviewed

    def counter(self, run_id: str, policy: Policy, block: int = BLOCK) -> "SumCounter":
        """What counts the sums of a run, while it trains and when it predicts."""
        return SumCounter(self, run_id, policy, block)

    def reserve(self, run_id: str, wanted: int, policy: Policy) -> int:
        """Count up to `wanted` more sums of a run, durably; fewer where the floor is near, 0 where it is reached."""
        with self._named(), write_transaction(self._engine) as connection:
            entries = self._by_source(_entries(connection))
            own = _newest(entries, run_id)
            if own is None:
                return wanted  # a run from before there was a register predicts
            most = policy.most_sums(own.rank)
            if most is not None and own.exact:
                left = most - _sums_per_row(connection, entries, own, policy)
                wanted = max(0, min(wanted, int(left / own.share)))
            _set_sums(connection, own, own.sums + wanted)
            return wanted

    def share_of(self, run_id: str) -> float:
        """The part of the rows that one sum of a run is about; all of them where nothing is known of it."""
        with self._named(), self._engine.connect() as connection:
            own = _newest(_entries(connection), run_id)
        return 1.0 if own is None else own.share

    def give_back(self, run_id: str, unused: int) -> None:
        """Sums that were counted and did not leave."""
        with self._named(), write_transaction(self._engine) as connection:
            own = _newest(_entries(connection), run_id)
            if own is not None and unused:
                _set_sums(connection, own, own.sums - unused)

    def _reviewed(self, connection: sa.Connection, asked: Asked, policy: Policy) -> Reviewed:
        """The review of a run, with every table known by what it reads."""
        entries = _entries(connection)
        for each in (*asked.further, asked):
            if policy.mixing == "refuse" and _own(entries, each.exposure) is None:
                self._check_accounts(connection, entries, each)
        return _reviewed(connection, self._by_source(entries), self._asked_by_source(asked), policy)

    def _check_accounts(self, connection: sa.Connection, entries: Iterable[Exposure], asked: Asked) -> None:
        """Refuse noise for rows that have an account under another name: two draws would tell more than one budget."""
        new = asked.exposure
        for old in entries:
            if old.exact or new.exact or old.table == new.table or self._source(old.table) != self._source(new.table):
                continue
            if _has_rows_of(connection, old, asked):
                raise ExposureRefused(
                    f"rows of table {new.table} have their ε under another name of the same file, table {old.table}: "
                    "ask for that name, or let the owner set `mixing` in the policy"
                )

    def _source(self, table: str) -> str:
        return self._sources.get(table, table)

    def _by_source(self, entries: Iterable[Exposure]) -> list[Exposure]:
        return [replace(each, table=self._source(each.table)) for each in entries]

    def _asked_by_source(self, asked: Asked) -> Asked:
        further = tuple(self._asked_by_source(each) for each in asked.further)
        found = replace(
            asked, exposure=replace(asked.exposure, table=self._source(asked.exposure.table)), further=further
        )
        if "hashes" in vars(asked):
            vars(found)["hashes"] = asked.hashes
        return found

    def _named(self) -> AbstractContextManager[None]:
        return named_failures("the register of exposure", self._engine)


class SumCounter:
    """Counts the sums of one session, a block ahead; sums leave from several threads."""

    def __init__(self, register: Register, run_id: str, policy: Policy, block: int) -> None:
        self._register, self._run_id, self._policy, self._block = register, run_id, policy, block
        self._left, self._turn = 0, threading.Lock()

    def count(self, sums: int = 1, *, of_every_row: bool = False) -> None:
        """Note sums before they leave: of batches, or of every row, which are as many as it takes to sum each once.

        Raises:
            ExposureRefused: where the owner's floor is reached.
        """
        if of_every_row and sums:
            sums = ceil(sums / self._register.share_of(self._run_id))
        with self._turn:
            if self._left < sums:
                wanted = max(self._block, sums - self._left)
                self._left += self._register.reserve(self._run_id, wanted, self._policy)
            if self._left < sums:
                raise ExposureRefused(
                    f"`sums_per_row` is reached: it is {self._policy.sums_per_row}, over all runs of this view. The "
                    "owner may raise it in the policy; the run can be resumed then"
                )
            self._left -= sums

    def close(self) -> None:
        """Give back what was counted ahead; where that cannot be written it stays counted, which errs safely."""
        with self._turn:
            try:
                self._register.give_back(self._run_id, self._left)
            except StorageFailed as failure:
                logger.warning("up to %d sums that did not leave stay counted: %s", self._left, failure)
            self._left = 0


def open_register(url: str, sources: Mapping[str, str] | None = None) -> Register:
    """The register at a database URL; `sources` has the first name of those that read the same file, by table."""
    return Register(open_engine(url), sources)


def first_names(paths: Mapping[str, str]) -> dict[str, str]:
    """For each table the first in the alphabet that reads the same file: rows are the same under any of its names."""
    files = {name: path if "://" in path else os.path.realpath(path) for name, path in paths.items()}
    first: dict[str, str] = {}
    for name in sorted(files):
        first.setdefault(files[name], name)
    return {name: first[file] for name, file in files.items()}


def _reviewed(connection: sa.Connection, entries: list[Exposure], asked: Asked, policy: Policy) -> Reviewed:
    new = asked.exposure
    own = _own(entries, new)
    _check_same_run(entries, new)
    for each in (*asked.further, asked):
        if _own(entries, each.exposure) is None:
            _check_runs(entries, each.exposure, policy)
            if policy.mixing == "refuse":
                _check_mixing(connection, entries, each)
            if policy.differencing != "allow":
                _check_judged(connection, entries, each, policy)
    salt = own.salt if own is not None else _salt(connection, entries, asked, policy)
    before = _sums_per_row(connection, entries, own or new, policy, asked)
    return Reviewed(salt, _check_sums(own or new, before, asked.sums_per_row, policy))


def _check_same_run(entries: Iterable[Exposure], new: Exposure) -> None:
    for old in entries:
        if old.run_id == new.run_id and (old.columns, old.partners, old.seed) != (new.columns, new.partners, new.seed):
            raise ExposureRefused(
                f"run {new.run_id} was begun here with other columns, partners or seed: start a new run"
            )


def _check_runs(entries: Iterable[Exposure], new: Exposure, policy: Policy) -> None:
    served = {old.run_id for old in entries if (old.table, old.columns) == (new.table, new.columns)} - {new.run_id}
    if len(served) >= policy.runs_per_view:
        what = f"view {new.view}" if new.view else f"table {new.table}"
        raise ExposureRefused(
            f"`runs_per_view` is reached: {what} has served {len(served)} runs. The owner may raise it in the policy"
        )


def _check_mixing(connection: sa.Connection, entries: Iterable[Exposure], asked: Asked) -> None:
    """Refuse exact values of rows whose ε is finite so far, and a promise of ε for rows that have left exactly."""
    new = asked.exposure
    for old in entries:
        if old.exact == new.exact or old.table != new.table or old.run_id == new.run_id:
            continue
        if not _has_rows_of(connection, old, asked):
            continue
        what = "without noise of this party's own" if new.exact else "with a finite ε"
        before = "with a finite ε" if new.exact else "without noise"
        raise ExposureRefused(
            f"a run {what} over rows of table {new.table} that run {old.run_id} has used {before}: together they "
            "have no ε, and an exact release counts as infinite. Keep tables for the one and for the other apart, or "
            "let the owner set `mixing` in the policy"
        )


def _check_judged(connection: sa.Connection, entries: Iterable[Exposure], asked: Asked, policy: Policy) -> None:
    """Refuse metrics over rows that differ by a few from those of an earlier run: a model that hardly moves makes the
    same mistakes in both, whatever the seeds are."""
    new, least = asked.exposure, policy.minimum_evaluation
    for old in entries:
        if (new.layout, new.exact) != ("judged", True) or (old.layout, old.exact) != ("judged", True):
            continue
        if old.table != new.table or old.rows_digest == new.rows_digest:
            continue
        before = _hashes(connection, old.rows_digest)
        now = _hashes_of(connection, asked)
        if before is not None and len(np.setxor1d(before, now, assume_unique=True)) < least:
            raise ExposureRefused(
                f"metrics would be taken over rows that differ from those of run {old.run_id} by fewer than "
                f"`minimum_evaluation`, {least}, and two figures would tell labels of these rows: hold out the same "
                "rows, or others"
            )


def _salt(connection: sa.Connection, entries: list[Exposure], asked: Asked, policy: Policy) -> str:
    """What makes the batches of a run its own, if one of the tables that it reads needs it."""
    salts = [_salted(connection, entries, each, policy) for each in (asked, *asked.further)]
    return next((salt for salt in salts if salt), "")


def _salted(connection: sa.Connection, entries: Iterable[Exposure], asked: Asked, policy: Policy) -> str:
    """What makes the run's batches its own; refused where the policy says so, or where batches do not matter."""
    if policy.differencing == "allow":
        return ""
    for old in entries:
        how = difference(asked.exposure, old)
        if how is None or old.run_id == asked.exposure.run_id:
            continue
        if how == OTHER_SCALES and policy.sums_per_row == "columns":  # all sums together are too few
            continue
        if not _has_rows_of(connection, old, asked):
            continue
        if policy.differencing == "salt" and asked.own_batches:
            return secrets.token_hex(8)
        raise ExposureRefused(_sentence(asked, old, how, policy.differencing))
    return ""


def _sentence(asked: Asked, old: Exposure, how: str, chosen: Literal["refuse", "salt", "allow"]) -> str:
    needs_owner = asked.exposure.rank is not None and old.rank is not None
    remedy = "train with the same columns and partners" if needs_owner else "choose another seed"
    if asked.exposure.layout == "figures":
        remedy = "ask for the same rows, bins and cells"
    elif how == OTHER_SCALES:
        remedy = "train on the same rows, or have the owner declare public `figures` for the table"
    elif not needs_owner and ANY_SEED in (asked.exposure.seed, old.seed):
        remedy = (
            "keep rows, batches, columns and partners as they were, or take batches of less than half of the rows in "
            "both"
        )
    salted = ", and a salt changes nothing where this party draws no batches of its own" if chosen == "salt" else ""
    return (
        f"its sums could be subtracted from those of run {old.run_id} ({how}){salted}: {remedy}, or let the owner set "
        "`differencing` in the policy"
    )


def _check_sums(own: Exposure, before: int, foretold: int, policy: Policy) -> tuple[str, ...]:
    """Refuse a run that would pass the owner's floor; warn of one that comes near the number of columns."""
    if not own.exact:
        return ()
    most = policy.most_sums(own.rank)
    bound = str(most) if most == policy.sums_per_row else f"{policy.sums_per_row}, which is {most} here"
    if most is not None and before and before >= most:
        raise ExposureRefused(
            f"`sums_per_row` is reached: {before} sums of a row of this view have left, and it is {bound}. The owner "
            "may raise it in the policy"
        )
    if most is not None and own.sums == 0 and before + foretold > most:
        raise ExposureRefused(
            f"the run needs about {foretold} sums of each row, {before} have left before, and `sums_per_row` is "
            f"{bound}: take fewer steps or smaller batches, or train through a network; or let the owner raise it in "
            "the policy"
        )
    if own.rank is None or 2 * (before + foretold) < own.rank:
        return ()
    return (
        f"about {before + foretold} sums of each row will have left after this run, and this party's block is linear: "
        f"from {own.rank} sums on, whoever sees them can confirm a guessed column",
    )


def _sums_per_row(
    connection: sa.Connection,
    entries: Iterable[Exposure],
    own: Exposure,
    policy: Policy,
    asked: Asked | None = None,
) -> int:
    """Exact sums of a row under one view of a table, over all runs that have rows in common with this one.

    Where columns are the bound, a sum of another run counts for as many as tell the same of a row in this one.
    """
    total = 0.0
    for old in entries:
        if not old.exact or (old.table, old.columns) != (own.table, own.columns):
            continue
        if old.rows_digest != own.rows_digest:
            hashes = _hashes(connection, own.rows_digest) if asked is None else _hashes_of(connection, asked)
            if hashes is not None and not _overlap(connection, old.rows_digest, hashes):
                continue
        by_columns = policy.sums_per_row == "columns" and own.rank is not None and old.rank is not None
        total += old.sums_per_row * ((own.rank or 1) / (old.rank or 1) if by_columns else 1)
    return ceil(total)


def _own(entries: Iterable[Exposure], new: Exposure) -> Exposure | None:
    """The entry of a run over the very data that it reads now."""
    return next((old for old in entries if old.run_id == new.run_id and old.data == new.data), None)


def _newest(entries: list[Exposure], run_id: str) -> Exposure | None:
    return next((old for old in reversed(entries) if old.run_id == run_id and old.share), None)


def _entries(connection: sa.Connection) -> list[Exposure]:
    ordered = sa.select(entries_table).order_by(entries_table.c.number)
    return [from_record(record) for record in connection.execute(ordered)]


def _set_sums(connection: sa.Connection, own: Exposure, sums: int) -> None:
    of_run = (entries_table.c.run_id == own.run_id) & (entries_table.c.rows_digest == own.rows_digest)
    same = of_run & (entries_table.c.table_digest == own.table_digest)
    connection.execute(entries_table.update().where(same).values(sums=sums))


def _keep_rows(connection: sa.Connection, asked: Asked) -> None:
    digest = asked.exposure.rows_digest
    if not _knows(connection, digest):
        hashes = asked.hashes
        values = {"digest": digest, "count": len(hashes), "hashes": hashes.data.cast("B")}
        connection.execute(rows_table.insert().values(values))


def _knows(connection: sa.Connection, digest: str) -> bool:
    """Whether the hashes of these rows are kept."""
    return connection.scalar(sa.select(rows_table.c.count).where(rows_table.c.digest == digest)) is not None


def _hashes(connection: sa.Connection, digest: str) -> RowHashes | None:
    found = connection.scalar(sa.select(rows_table.c.hashes).where(rows_table.c.digest == digest))
    return None if found is None else np.frombuffer(found, "<u8")


def _hashes_of(connection: sa.Connection, asked: Asked) -> RowHashes:
    """Of the rows that a run asks for: as they are kept, or else made now."""
    if "hashes" not in vars(asked):
        kept = _hashes(connection, asked.exposure.rows_digest)
        if kept is not None:
            vars(asked)["hashes"] = kept
    return asked.hashes


def _has_rows_of(connection: sa.Connection, old: Exposure, asked: Asked) -> bool:
    """Whether an earlier run used one of the rows that are asked for."""
    if old.rows_digest == asked.exposure.rows_digest:
        return True
    return _overlap(connection, old.rows_digest, _hashes_of(connection, asked))


def _overlap(connection: sa.Connection, digest: str, hashes: RowHashes) -> bool:
    """Whether two sets of rows have one in common."""
    other = _hashes(connection, digest)
    return other is not None and bool(np.isin(other, hashes, assume_unique=True).any())
