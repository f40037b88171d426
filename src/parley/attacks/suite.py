"""All attacks, on a spec before it runs. Each is told what the settings guarantee, and says what it recovered."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from threadpoolctl import threadpool_limits

from parley.attacks.averages import invert_averages
from parley.attacks.columns import confirm_columns, difference_columns
from parley.attacks.findings import Finding
from parley.attacks.label_releases import average_labels, infer_labels
from parley.attacks.membership import infer_membership
from parley.attacks.metric_releases import read_off_metrics
from parley.attacks.oracles import ask_for_errors
from parley.attacks.stand_in import ROWS, StandIn, stand_in
from parley.spec.run import RunSpec


@dataclass(frozen=True)
class Attack:
    """One entry of the suite."""

    summary: str
    mount: Callable[[StandIn], list[Finding]]
    """An empty list where the attack has nothing to work with in this algorithm."""
    rows: int = ROWS
    """Rows of the tables that are made up for it."""
    quick: bool = True
    """Whether it takes a moment only."""


ATTACKS = {
    "labels": Attack("labels from the gradients that a party receives", infer_labels, rows=3000),
    "label-averaging": Attack("labels from many runs over one label table", average_labels, rows=2000),
    "metrics": Attack("labels from accuracies and losses", read_off_metrics),
    "columns": Attack("a guessed column, confirmed by what sums span", confirm_columns, rows=800),
    "differencing": Attack("a column from two runs that differ by it", difference_columns, rows=800),
    "inversion": Attack("rows from the movement of averages", invert_averages, quick=False),
    "membership": Attack("which rows were trained on, from predictions", infer_membership, rows=400, quick=False),
    "errors": Attack("private figures in sentences of errors", ask_for_errors),
}


class AttackUnknown(ValueError):
    """There is no attack of this name."""


def attack(
    spec: RunSpec, names: tuple[str, ...] = (), *, quick: bool = False, rows: int | None = None
) -> Iterator[Finding]:
    """Mount attacks on a spec, on tables that stand in for its own; all of them, or those that are named.

    `rows` is how many rows these tables have, where it is not what each attack takes.

    Raises:
        AttackUnknown: if a name is none of `ATTACKS`.
        NoStandIn: if no tables can be made up for the spec.
    """
    unknown = [name for name in names if name not in ATTACKS]
    if unknown:
        raise AttackUnknown(f"there is no attack {unknown[0]!r}: choose among {', '.join(ATTACKS)}")
    for name, each in ATTACKS.items():
        if name in names or (not names and (each.quick or not quick)):
            with subject_of(spec, rows or each.rows) as subject, threadpool_limits(1):
                yield from each.mount(subject)


@contextmanager
def subject_of(spec: RunSpec, rows: int) -> Iterator[StandIn]:
    """Made-up tables for a spec, for as long as they are needed."""
    with tempfile.TemporaryDirectory(prefix="parley-attack-") as folder:
        yield stand_in(spec, Path(folder), rows)
