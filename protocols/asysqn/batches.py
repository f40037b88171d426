"""Which rows a step reads, by name: both roles derive the same rows from the run's public numbers, and list none.

A requester's next sum is over all rows where a snapshot is due, else over the batch (k, t): k snapshots and t steps
of its own came before. Row numbers count the training rows; the label holder looks them up among all labels.
"""

import numpy as np
from numpy.typing import NDArray

from parley.numerics.gradient_estimators import Estimator, needs_reference
from parley.numerics.streams import batch
from parley.protocols.asysqn.messages import AllRows, Batch, RowsName

Rows = NDArray[np.int64]


def next_rows(estimator: Estimator, snapshot_every: int, *, snapshots: int, steps: int, steps_since: int) -> RowsName:
    """What a requester asks for after so many snapshots and steps; `steps_since` counts from the last snapshot."""
    due = needs_reference(estimator, has_one=snapshots > 0, steps_since=steps_since, every=snapshot_every)
    return AllRows() if due else Batch(snapshots, steps)


def snapshots_before(estimator: Estimator, snapshot_every: int, t: int) -> int:
    """Snapshots before step t, which follow from t alone: a step's name leaves no choice of rows."""
    match estimator:
        case Estimator.SGD:
            return 0
        case Estimator.SAGA:
            return 1
        case Estimator.SVRG:
            return 1 + t // snapshot_every


def batch_rows(seed: int, requester: str | None, name: Batch, *, rows: int, size: int) -> Rows:
    """The row numbers of a requester's batch, of `rows` training rows; without a requester, of everybody's.

    Synchronous parties draw from one common stream, so that they agree without a message.
    """
    stream = "asysqn/shared" if requester is None else f"asysqn/{requester}"
    return batch(seed, stream, name.k, name.t, rows, min(size, rows))


def watched_rows(seed: int, trained: Rows, size: int | None) -> Rows:
    """The training rows on which the objective is watched, fixed for the run; all without a size."""
    return trained if size is None else batch(seed, "asysqn/watch", 0, 0, trained, size)
