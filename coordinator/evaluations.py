"""The way to figures on true labels: a run's evaluations are written down before the first of them."""

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parley.privacy.evaluations import (
    Evaluation,
    EvaluationPolicy,
    EvaluationRefused,
    EvaluationRegister,
    Order,
    members_of,
)
from parley.privacy.noise import KeyedNoise
from parley.storage.failures import StorageAway
from parley.tables.loading import Labels

_WAIT_SECONDS = 0.5


@dataclass(frozen=True)
class EvaluationAccess:
    """What one run may measure on true labels, and where that is counted."""

    register: EvaluationRegister
    policy: EvaluationPolicy
    label_table: str
    """The table, whatever name a spec calls it by."""
    run: str
    noise_key: bytes
    only_checks: bool = False
    """Refuse what cannot be measured, and write nothing."""
    patience_seconds: float = 0.0
    """How long a database that is away is waited for."""

    def over(self, labels: Labels, rows: NDArray[np.int64], name: str, times: int) -> Evaluation:
        """Figures called `name` over these rows, so many times in the whole run.

        Raises:
            EvaluationRefused: if the rows are too few, or too much like those of another run.
            EvaluationsSpent: if some of them were evaluated as often as they may be.
        """
        order = Order(self.label_table, name, members_of(labels.ids[rows].tolist()), times)
        deadline = time.monotonic() + self.patience_seconds
        while True:
            try:
                act = self.register.check if self.only_checks else self.register.reserve
                act(self.run, order, self.policy)
                break
            except StorageAway:
                if time.monotonic() + _WAIT_SECONDS > deadline:
                    raise
                time.sleep(_WAIT_SECONDS)
        if self.policy.epsilon is None:
            return Evaluation(len(rows))
        return Evaluation(len(rows), KeyedNoise(self.noise_key), self.policy.epsilon, self.run, name)

    def refuse_exact(self, what: str) -> None:
        """Refuse something that works with exact figures only, where they may not leave.

        Raises:
            EvaluationRefused: if figures leave with noise.
        """
        if self.policy.epsilon is not None:
            raise EvaluationRefused(
                f"{what} needs exact figures on true labels, and the coordinator lets them out with noise only "
                "(`evaluation_epsilon` of its labels): leave it out"
            )
