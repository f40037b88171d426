"""The coordinator sides of the algorithms that are installed here, with the labels that their programs read."""

import json
from collections.abc import Collection

from parley.coordinator.evaluations import EvaluationAccess
from parley.coordinator.forecasts import Forecast, Widths
from parley.coordinator.labels import LabelAccess
from parley.coordinator.programs import CommonRows, CoordinatorAlgorithm, Predictor, Program
from parley.privacy.evaluations import EvaluationRegister
from parley.privacy.ledger import Ledger
from parley.services.coordinator.labels import LabelStore
from parley.spec.algorithms import algorithm_named
from parley.spec.events import RunPrivacy
from parley.spec.run import RunSpec


def coordinator_side(spec: RunSpec) -> CoordinatorAlgorithm:
    """The coordinator side of a run's algorithm."""
    side: CoordinatorAlgorithm = algorithm_named(spec.train.algorithm).load("coordinator")
    return side


class ProgramFactory:
    """Makes the program of a run: data checked, labels loaded."""

    def __init__(
        self,
        labels: LabelStore,
        ledger: Ledger,
        noise_key: bytes,
        register: EvaluationRegister,
        problem_imports: Collection[str] = (),
    ) -> None:
        self._labels, self._ledger, self._noise_key, self._register = labels, ledger, noise_key, register
        self._problem_imports = problem_imports

    def check(self, spec: RunSpec, run_id: str, rows: CommonRows) -> None:
        """Refuse labels, networks or evaluations that do not fit the run; changes and spends nothing."""
        access = self._access(spec, "", self._evaluations(spec, run_id, only_checks=True))
        coordinator_side(spec).check(spec, access, rows)

    def make(self, spec: RunSpec, run_id: str) -> Program:
        """The program of a run."""
        return coordinator_side(spec).program(spec, self._access(spec, run_id, self._evaluations(spec, run_id)))

    def spent(self, run_id: str, seconds: float) -> RunPrivacy | None:
        """What a run's labels have cost so far; None if it has released nothing. Waits so long for the database."""
        newest = self._ledger.patient(seconds).newest(run_id)
        if newest is None:
            return None
        entry, budget = newest
        return RunPrivacy(
            entry.epsilon, entry.delta, budget.epsilon, entry.largest_count, entry.sequence + 1, entry.hash
        )

    def predictor(self, spec: RunSpec, run_id: str) -> Predictor | None:
        """How a run's saved models predict together; None where every party has the whole model."""
        make = coordinator_side(spec).predictor
        return None if make is None else make(spec, self._access(spec, run_id))

    def forecast(self, spec: RunSpec, widths: Widths) -> Forecast | None:
        """What the rounds of a run will carry; None where its algorithm cannot tell."""
        return coordinator_side(spec).forecast(spec, self._access(spec, ""), widths)

    def _access(self, spec: RunSpec, run_id: str, evaluations: EvaluationAccess | None = None) -> LabelAccess:
        ledger = self._ledger.patient(spec.wait_seconds)  # a run outlasts an outage of the database
        terms = self._labels.terms(spec)
        return LabelAccess(
            spec,
            run_id,
            self._labels.load,
            ledger,
            self._noise_key,
            terms,
            evaluations,
            self._problem_imports,
            self._labels.terms_of,
            self._labels.names_of,
        )

    def _evaluations(self, spec: RunSpec, run_id: str, *, only_checks: bool = False) -> EvaluationAccess | None:
        """How figures on true labels leave; None where the coordinator has no such labels."""
        if spec.label_table not in self._labels.tables:
            return None
        config = self._labels.tables[self._labels.names_of(spec.label_table)[0]]
        table = json.dumps([str(config.path or config.url), config.query, config.table, config.column])
        return EvaluationAccess(
            self._register,
            self._labels.evaluation_of(spec.label_table),
            table,
            run_id,
            self._noise_key,
            only_checks,
            spec.wait_seconds,
        )
