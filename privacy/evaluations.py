"""Metrics on true labels are releases: over enough rows, counted across runs, with noise where the owner wants it.

An accuracy over one row is that row's label, and so is the difference of two accuracies over sets that differ by it.
Hence three rules, over all runs on a label table: a figure is over at least `minimum_rows` rows; so is whatever sets
tell together, two that differ by a few rows or three that add up to one (shared_rows.py); a row is in a limited number
of sets and of evaluations. The register is durable, and a
run's evaluations are written down before the first of them: going on with a run costs nothing more.

A loss is told the more coarsely the fewer rows it is over. What the rules do not exclude: whoever knows the scores of
every row and sees many exact figures can solve for labels (Dinur and Nissim 2003; a loss tells more than an accuracy).
`epsilon` bounds that: the number of right rows gets discrete Laplace noise, nothing else leaves, and the sum over a
row's evaluations is kept under `budget`. The noise is cut off where its mass falls below 2^-38, so the guarantee is
(epsilon, 2^-37).
"""

import functools
import hashlib
import math
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from parley.privacy.noise import GRID, KeyedNoise, grid_laplace
from parley.privacy.shared_rows import row_shares
from parley.storage.engines import open_engine, write_transaction
from parley.storage.failures import named_failures
from parley.storage.migrations import History, upgrade
from parley.tables.identities import canonical

DOUBLE_BITS = 53
_NEARLY_ONE = 1 + 1e-7
"""Shares of rows are sums that were rounded."""
EXACT = frozenset({"accuracy", "threshold", "precision", "recall", "f1"})
"""Figures that leave as they are: counts over enough rows, as are most of those with a slash in their name."""
COARSE_ENDS, COARSE_FIGURES = ("/low", "/high"), "classes/auc/"
"""Figures with a slash that follow from every score and label, as losses do: ends of intervals, areas of classes."""
Members = NDArray[np.uint64]
"""A set of rows: one number for each id, ascending."""

metadata = sa.MetaData()
sets = sa.Table(
    "evaluation_sets",
    metadata,
    sa.Column("label_table", sa.Text, primary_key=True),
    sa.Column("digest", sa.Text, primary_key=True),
    sa.Column("members", sa.LargeBinary, nullable=False),
)
runs = sa.Table(
    "evaluation_runs",
    metadata,
    sa.Column("run", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("label_table", sa.Text, nullable=False),
    sa.Column("digest", sa.Text, nullable=False),
    sa.Column("row_count", sa.BigInteger, nullable=False),
    sa.Column("evaluations", sa.BigInteger, nullable=False),
    sa.Column("epsilon", sa.Double, nullable=True),
    sa.Column("time", sa.Text, nullable=False),
)
HISTORY = History("evaluations", metadata, Path(__file__).parent / "evaluation_revisions", newest="0001")


class EvaluationRefused(RuntimeError):
    """Metrics over these rows would tell single labels."""


class EvaluationsSpent(RuntimeError):
    """The rows were evaluated as often as their owner allows."""


@dataclass(frozen=True)
class EvaluationPolicy:
    """What the holder of a label table lets out of it as metrics."""

    minimum_rows: int = 20
    """Fewest rows of a figure, and of the difference between two sets."""
    sets_per_row: int = 100
    """Most different sets that one row may be in."""
    evaluations_per_row: int = 100_000
    """Most evaluations that one row may be in."""
    epsilon: float | None = None
    """ε of one evaluation; None lets exact figures out."""
    budget: float = 10.0
    """Most ε that evaluations may spend on one row."""


@dataclass(frozen=True)
class Order:
    """Evaluations that a run plans over one set of rows."""

    label_table: str
    """The table, whatever name a spec calls it by."""
    name: str
    """What the figures are called: `test`, `training`."""
    members: Members
    times: int
    """Evaluations of the whole run."""

    @property
    def digest(self) -> str:
        """Over the rows."""
        return hashlib.sha256(self.members.tobytes()).hexdigest()


@dataclass(frozen=True)
class Counted:
    """One line of the register."""

    run: str
    name: str
    rows: int
    evaluations: int
    epsilon: float | None
    """ε of each evaluation; None if the figures are exact."""


def members_of(ids: Iterable[str]) -> Members:
    """The set of rows with these ids, however a file or an alignment spells them."""
    spelt = (canonical(one).encode() for one in ids)
    numbers = [int.from_bytes(hashlib.blake2b(each, digest_size=8).digest(), "big") for each in spelt]
    return np.unique(np.array(numbers, dtype=np.uint64))


class EvaluationRegister:
    """Every evaluation on true labels, durable. Held by whoever holds the labels."""

    def __init__(self, engine: sa.Engine, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._engine, self._clock = engine, clock
        with named_failures("the register of evaluations", engine):
            upgrade(engine, HISTORY)

    def check(self, run: str, order: Order, policy: EvaluationPolicy) -> None:
        """Refuse what `reserve` would refuse; writes nothing.

        Raises:
            EvaluationRefused: if the rows are too few, or too much like those of another set.
            EvaluationsSpent: if some of them were evaluated as often as they may be.
        """
        with named_failures("the register of evaluations", self._engine), self._engine.connect() as connection:
            self._check(connection, run, order, policy)

    def reserve(self, run: str, order: Order, policy: EvaluationPolicy) -> None:
        """Write down all evaluations of a run over one set, before the first; a run that goes on costs nothing more.

        Raises:
            EvaluationRefused, EvaluationsSpent: as `check` does; nothing was written.
        """
        with named_failures("the register of evaluations", self._engine), write_transaction(self._engine) as connection:
            if not self._check(connection, run, order, policy):
                return
            key = {"label_table": order.label_table, "digest": order.digest}
            known = sa.select(sets.c.digest).filter_by(**key)
            if connection.execute(known).first() is None:
                connection.execute(sets.insert().values(**key, members=zlib.compress(order.members.tobytes(), 1)))
            line = {"run": run, "name": order.name, "row_count": len(order.members), "evaluations": order.times}
            now = self._clock().isoformat(timespec="milliseconds")
            connection.execute(runs.insert().values(**key, **line, epsilon=policy.epsilon, time=now))

    def of_run(self, run: str) -> list[Counted]:
        """What a run has reserved."""
        query = sa.select(runs).where(runs.c.run == run).order_by(runs.c.name)
        with named_failures("the register of evaluations", self._engine), self._engine.connect() as connection:
            found = connection.execute(query).mappings()
            return [Counted(r["run"], r["name"], r["row_count"], r["evaluations"], r["epsilon"]) for r in found]

    def close(self) -> None:
        """Give the database connections back."""
        self._engine.dispose()

    def _check(self, connection: sa.Connection, run: str, order: Order, policy: EvaluationPolicy) -> bool:
        """Whether anything is to be written: a run that goes on has its line already."""
        if len(order.members) < policy.minimum_rows:
            raise EvaluationRefused(
                f"figures on {order.name} rows would be over {len(order.members)} rows, and leave over at least "
                f"{policy.minimum_rows} (`minimum_evaluation` of the coordinator's labels): choose more {order.name} "
                "rows in `split`, or `test: 0` for none"
            )
        query = sa.select(runs.c.digest, runs.c.evaluations).filter_by(run=run, name=order.name)
        mine = connection.execute(query).first()
        if mine is not None and (mine.digest, mine.evaluations) == (order.digest, order.times):
            return False
        if mine is not None:
            raise EvaluationRefused(f"run {run} was evaluated on other {order.name} rows before: start a new run")
        self._check_counts(connection, order, policy)
        return True

    def _check_counts(self, connection: sa.Connection, order: Order, policy: EvaluationPolicy) -> None:
        in_sets = np.zeros(len(order.members), dtype=np.int64)
        evaluated, spent = in_sets.copy(), np.zeros(len(order.members))
        done, others = self._done(connection, order.label_table), list[Members]()
        for digest, blob in connection.execute(
            sa.select(sets.c.digest, sets.c.members).where(sets.c.label_table == order.label_table)
        ):
            other: Members = np.frombuffer(zlib.decompress(blob), dtype=np.uint64)
            shared = np.isin(order.members, other, assume_unique=True)
            apart = len(order.members) + len(other) - 2 * int(shared.sum())
            if 0 < apart < policy.minimum_rows:
                raise EvaluationRefused(
                    f"the {order.name} rows differ by {apart} from a set that was evaluated before, and two figures "
                    f"would tell labels of these rows: take the same rows, or change at least {policy.minimum_rows} "
                    "(`minimum_evaluation` of the coordinator's labels)"
                )
            others.append(other)
            times, epsilon = done.get(digest, (0, 0.0))
            in_sets += shared if digest != order.digest else 0
            evaluated, spent = evaluated + shared * times, spent + shared * epsilon
        if not any(np.array_equal(order.members, other) for other in others):
            _check_shares(order, others, policy)
        limits = (
            ("test_sets_per_row", int(in_sets.max()) + 1, policy.sets_per_row),
            ("evaluations_per_row", int(evaluated.max()) + order.times, policy.evaluations_per_row),
            ("evaluation_budget", float(spent.max()) + order.times * (policy.epsilon or 0.0), policy.budget),
        )
        for field, wanted, limit in limits:
            if wanted > limit:
                raise EvaluationsSpent(
                    f"a row's label would be in figures beyond `{field}` of the coordinator's labels ({wanted:g}, the "
                    f"limit is {limit:g}): evaluate less often (`evaluate_every`), on other rows or on none, or have "
                    "the label holder raise it"
                )

    @staticmethod
    def _done(connection: sa.Connection, label_table: str) -> dict[str, tuple[int, float]]:
        """For each set the evaluations so far, and the ε that they cost."""
        cost = sa.func.coalesce(sa.func.sum(runs.c.evaluations * runs.c.epsilon), 0.0)
        query = sa.select(runs.c.digest, sa.func.sum(runs.c.evaluations), cost)
        query = query.where(runs.c.label_table == label_table).group_by(runs.c.digest)
        return {digest: (int(times), float(epsilon)) for digest, times, epsilon in connection.execute(query)}


def open_register(url: str) -> EvaluationRegister:
    """The register at a database URL."""
    return EvaluationRegister(open_engine(url))


def _check_shares(order: Order, others: list[Members], policy: EvaluationPolicy) -> None:
    """Refuse a set that would bring figures closer to single rows than `minimum_rows` lets them come."""
    rows = functools.reduce(np.union1d, others, order.members)
    before = row_shares(others, rows) if others else np.zeros(len(rows))
    after = row_shares([*others, order.members], rows)
    if ((after > _NEARLY_ONE / policy.minimum_rows) & (after > _NEARLY_ONE * before)).any():
        raise EvaluationRefused(
            f"figures over the {order.name} rows, added to and subtracted from those of sets that were evaluated "
            f"before, would be about fewer than {policy.minimum_rows} rows (`minimum_evaluation` of the coordinator's "
            "labels): take the rows of one of those sets, or rows that are in none of them"
        )


def rounded(value: float, rows: int) -> float:
    """A figure with one significant bit for every eight rows that it is over, and at least three.

    An exact loss over twenty rows of known scores fits one labelling only; a coarse one fits many.
    """
    unit = rounding_unit(value, rows)
    return round(value / unit) * unit if unit else value


def rounding_unit(value: float, rows: int) -> float:
    """The step between figures that may leave; 0 where a figure leaves as it is."""
    bits = max(3, rows // 8)
    if bits >= DOUBLE_BITS or not math.isfinite(value) or value == 0:
        return 0.0
    return float(2.0 ** (math.frexp(value)[1] - bits))


def _is_count(name: str) -> bool:
    if "/" not in name:
        return name in EXACT
    return not name.endswith(COARSE_ENDS) and not name.startswith(COARSE_FIGURES)


@dataclass(frozen=True)
class Evaluation:
    """Lets figures over one set of rows out, as its owner wants them."""

    rows: int
    noise: KeyedNoise | None = None
    """None lets exact figures out."""
    epsilon: float = 0.0
    run: str = ""
    name: str = ""

    @property
    def is_exact(self) -> bool:
        """Whether exact figures leave."""
        return self.noise is None

    def release(self, k: int, figures: dict[str, float]) -> dict[str, float]:
        """What leaves after iteration k; the same noise whenever it is evaluated again."""
        if self.noise is None:
            return {n: each if _is_count(n) else rounded(each, self.rows) for n, each in figures.items()}
        if "accuracy" not in figures:
            return {}
        words = self.noise.words(f"evaluation {self.name} {self.epsilon!r}", self.run, k, np.zeros(1, np.int64), 1)
        extra = float(grid_laplace(self.epsilon).draw(words.reshape(-1))[0]) / GRID
        return {"accuracy": min(1.0, max(0.0, figures["accuracy"] + extra / self.rows))}
