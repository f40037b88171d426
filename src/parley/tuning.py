"""Choose fields of a spec by how its runs do on rows that they are not fitted to.

A field that the lower problem is differentiable by is tuned by one bilevel run (`gradient_spec`). Others are searched
by Optuna, a run for each trial. All trials share one budget for the labels: noise that is drawn once is paid for once,
however many trials use it; what is drawn for each step adds up, and each trial may spend what the others have left.
"""

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from parley.contribution import LOWER_IS_BETTER

if TYPE_CHECKING:
    import optuna

    from parley.client import Federation, Run

DIFFERENTIABLE = "train.regularisation"


class NotTunable(ValueError):
    """A search that cannot begin as it was asked for."""


class BudgetSpent(RuntimeError):
    """The next trial would cost more than is left."""


@dataclass(frozen=True)
class Choice:
    """A field of the spec, and where it is searched."""

    field: str
    """Dotted, such as `train.regularisation`."""
    options: tuple[Any, ...] = ()
    """Values to choose from; or else the two ends of a range."""
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False
    """Whether the range is of whole numbers."""

    def suggest(self, trial: "optuna.Trial") -> Any:
        """A value for a trial."""
        if self.options:
            return trial.suggest_categorical(self.field, list(self.options))
        if self.whole:
            return trial.suggest_int(self.field, int(self.low), int(self.high), log=self.log)
        return trial.suggest_float(self.field, self.low, self.high, log=self.log)


@dataclass(frozen=True)
class Trial:
    """A run of the spec with values of its own."""

    number: int
    values: dict[str, Any]
    score: float | None
    run_id: str = ""
    outcome: str = "completed"
    """`completed`, `stopped early`, or why there is no score."""


@dataclass(frozen=True)
class Tuned:
    """What a search has found."""

    metric: str
    best: Trial | None
    trials: list[Trial]
    epsilon: float
    """What the labels have cost in all; infinite without noise."""
    ended: str
    """Why it ended."""


def choice_of(text: str) -> Choice:
    """`train.regularisation=0.001..1:log`, `train.lower.steps=1..5` or `train.model.out=8,16`."""
    field, found, values = text.partition("=")
    if not found or not field.strip() or not values.strip():
        raise NotTunable(f"{text!r} is no search: write FIELD=LOW..HIGH, FIELD=LOW..HIGH:log or FIELD=A,B,C")
    if ".." not in values:
        return Choice(field.strip(), tuple(yaml.safe_load(value) for value in values.split(",")))
    ends, _, kind = values.partition(":")
    low, _, high = ends.partition("..")
    try:
        first, last = float(low), float(high)
    except ValueError:
        raise NotTunable(f"{text!r}: a range goes from a number to a number") from None
    if kind not in ("", "log") or not first < last or (kind == "log" and first <= 0):
        raise NotTunable(f"{text!r}: a range goes up, from above 0 where it is `:log`")
    whole = all(part.strip().lstrip("-").isdigit() for part in (low, high))
    return Choice(field.strip(), (), first, last, log=kind == "log", whole=whole)


def with_values(spec: str, values: Mapping[str, Any]) -> str:
    """The spec with some fields changed."""
    content = yaml.safe_load(spec)
    for field, value in values.items():
        *parents, last = field.split(".")
        section = content
        for parent in parents:
            section = section.setdefault(parent, {})
            if not isinstance(section, dict):
                raise NotTunable(f"{field}: {parent} has no fields")
        section[last] = value
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


def is_differentiable(spec: str, choices: Sequence[Choice]) -> bool:
    """Whether one bilevel run tunes what is searched: the regularisation of a linear lower problem."""
    train = yaml.safe_load(spec).get("train", {})
    linear = train.get("problem") == "hyper_parameters" or train.get("model", {}).get("kind") == "identity"
    fields = [choice.field for choice in choices]
    return fields == [DIFFERENTIABLE] and train.get("algorithm") == "bambi" and linear and not choices[0].options


def gradient_spec(spec: str, choice: Choice) -> str:
    """The bilevel run that tunes one coefficient of each party, from the middle of the range."""
    content = yaml.safe_load(spec)
    train = content["train"]
    middle = math.sqrt(choice.low * choice.high) if choice.low > 0 else choice.high / 2
    train.update(problem="hyper_parameters", hypergradient="implicit", regularisation=middle)
    train.pop("model", None)
    train.setdefault("coefficients", "party")
    train.setdefault("upper", {"steps": 40, "batch": None, "optimiser": {"kind": "adam", "step": 0.2}})
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


class LabelCosts:
    """What the trials of a search have cost, and what is left for the next one."""

    def __init__(self, budget: float | None) -> None:
        self._budget = budget
        self._once: set[float] = set()
        self._steps = 0.0

    @property
    def spent(self) -> float:
        """ε of any one label over all trials."""
        return sum(self._once) + self._steps

    def prepared(self, spec: str) -> str:
        """The spec of the next trial, which may spend what is left.

        Raises:
            BudgetSpent: if its noise costs more than that.
            NotTunable: if it has none, under a budget.
        """
        if self._budget is None:
            return spec
        labels = yaml.safe_load(spec).get("privacy", {}).get("labels", {})
        mechanism, left = labels.get("mechanism", "once"), self._budget - self.spent
        if mechanism == "off":
            raise NotTunable("labels: {mechanism: off} costs more than any budget: take noise, or no --budget")
        if mechanism == "once":
            cost = 0.0 if self._epsilon(labels) in self._once else self._epsilon(labels)
            if cost > left + 1e-9:
                raise BudgetSpent(f"the next trial costs ε {cost:g}, and {left:g} of {self._budget:g} is left")
            return spec
        if left <= 1e-9:
            raise BudgetSpent(f"ε {self._budget:g} is spent")
        return with_values(spec, {"privacy.labels.budget": left})

    def charge(self, spec: str, epsilon: float) -> None:
        """Note what a trial has cost; `epsilon` is the ledger's."""
        labels = yaml.safe_load(spec).get("privacy", {}).get("labels", {})
        if labels.get("mechanism", "once") == "once":
            if epsilon:
                self._once.add(self._epsilon(labels))
        else:
            self._steps += epsilon

    @staticmethod
    def _epsilon(labels: Mapping[str, Any]) -> float:
        from parley.spec.protection import LabelPrivacySpec

        return float(LabelPrivacySpec.model_validate(labels).epsilon)


def metric_for(spec: str, wanted: str | None) -> str:
    """The figure that trials are compared by."""
    split = yaml.safe_load(spec).get("split", {})
    if wanted is not None:
        if wanted.startswith("test "):
            raise NotTunable("what is chosen by test rows is no longer tested by them: compare by a validation figure")
        return wanted
    if "validation" not in split:
        raise NotTunable("trials are compared on rows of their own: write `split: {validation: …}`, or name a --metric")
    return "validation loss"


def search(
    federation: "Federation",
    spec: str,
    choices: Sequence[Choice],
    *,
    trials: int,
    metric: str | None = None,
    study: Path,
    budget: float | None = None,
    patience: int | None = None,
    seed: int = 0,
    told: Callable[[Trial, "Tuned"], None] = lambda *_: None,
) -> Tuned:
    """Search by Optuna, a run for each trial; asked again with the same study, it goes on.

    A trial that was interrupted is asked for under the id that it had, so that its run is not made twice.
    """
    import optuna

    if not choices:
        raise NotTunable("name what to search: --over train.regularisation=0.001..1:log")
    chosen, costs = metric_for(spec, metric), LabelCosts(budget)
    costs.prepared(spec)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    digest = hashlib.sha256("\0".join([spec, chosen, *map(repr, choices)]).encode()).hexdigest()[:16]
    found = optuna.create_study(
        storage=f"sqlite:///{study}",
        study_name=digest,
        load_if_exists=True,
        direction="minimize" if chosen.endswith(LOWER_IS_BETTER) else "maximize",
        pruner=optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=1),
    )
    # a search that goes on must not draw again what it drew at first
    found.sampler = optuna.samplers.TPESampler(seed=seed + len(found.get_trials(deepcopy=False)))
    _take_up(found, spec, costs)
    ended = f"{trials} trials are done"
    while len(_done(found)) < trials:
        if patience is not None and _since_best(found) >= patience:
            ended = f"{patience} trials in a row were no better"
            break
        if (untried := _untried(found, choices)) is not None:
            if not untried:
                ended = "every combination is tried"
                break
            if len(untried) <= trials - len(_done(found)):
                found.enqueue_trial(untried[0], skip_if_exists=True)
        trial = found.ask()
        values = {choice.field: choice.suggest(trial) for choice in choices}
        try:
            text = costs.prepared(with_values(spec, values))
        except BudgetSpent as spent:
            found.tell(trial, state=optuna.trial.TrialState.FAIL)
            ended = str(spent)
            break
        _one(federation, found, trial, text, values, chosen, digest)
        costs.charge(text, float(found.trials[trial.number].user_attrs.get("epsilon", 0.0)))
        told(_trial(found.trials[trial.number]), _tuned(found, chosen, costs, ""))
        if refusal := _refused_alike(found):
            ended = f"refused whatever is tried: {refusal}"
            break
    return _tuned(found, chosen, costs, ended)


def _one(
    federation: "Federation",
    study: "optuna.Study",
    trial: "optuna.Trial",
    text: str,
    values: Mapping[str, Any],
    metric: str,
    digest: str,
) -> None:
    """One trial: its run, watched, and cancelled where it falls behind the others."""
    import optuna

    from parley.client import RequestRefused

    named = yaml.safe_dump(dict(values), sort_keys=True)
    request = hashlib.sha256("\0".join(["tune", digest, named]).encode()).hexdigest()[:32]
    state, score = optuna.trial.TrialState.FAIL, None
    try:
        run = federation.start(text, request)
        trial.set_user_attr("run", run.run_id)
        if run.refresh().state in ("FAILED", "CANCELLED"):
            run.resume()
        pruned = _watched(run, trial, metric)
        trial.set_user_attr("epsilon", spent_by(run))
        if pruned:
            state = optuna.trial.TrialState.PRUNED
        elif run.state == "COMPLETED" and metric in run.metrics:
            state, score = optuna.trial.TrialState.COMPLETE, run.metrics[metric]
        else:
            measured = f"it has no {metric!r}, only {sorted(run.metrics)}"
            trial.set_user_attr("outcome", measured if run.state == "COMPLETED" else run.reason or run.state)
    except RequestRefused as refusal:
        trial.set_user_attr("outcome", str(refusal))
    if state is optuna.trial.TrialState.COMPLETE and (score is None or not math.isfinite(score)):
        trial.set_user_attr("outcome", f"{metric} is not finite")
        state, score = optuna.trial.TrialState.FAIL, None
    trial.set_user_attr("done", True)
    study.tell(trial, score, state=state)


def _watched(run: "Run", trial: "optuna.Trial", metric: str) -> bool:
    """Follow a run to its end; whether it was stopped for falling behind."""
    from parley.services.wire.event_codec import decode_metrics

    seen: set[int] = set()
    for event in run.watch():
        figures = decode_metrics(event.metrics)
        if metric not in figures or event.step in seen:
            continue
        seen.add(event.step)
        trial.report(figures[metric], event.step)
        if trial.should_prune() and event.step < run.steps:
            run.cancel()
            return True
    return False


def spent_by(run: "Run") -> float:
    """ε of a run's labels, as its ledger composes it."""
    report = run.ledger().report
    if not report.mechanism:
        return 0.0
    known = [report.pure_epsilon, *([report.pld_epsilon] if report.pld_epsilon else [])]
    return float(min(known))


def _take_up(study: "optuna.Study", spec: str, costs: LabelCosts) -> None:
    """Count what earlier trials cost, and ask again for those that were interrupted."""
    import optuna

    for one in study.get_trials(deepcopy=False):
        if one.state is optuna.trial.TrialState.RUNNING:
            study.tell(one.number, state=optuna.trial.TrialState.FAIL)
            if one.params:
                study.enqueue_trial(one.params)
        elif "epsilon" in one.user_attrs:
            costs.charge(with_values(spec, one.params), float(one.user_attrs["epsilon"]))


def _untried(study: "optuna.Study", choices: Sequence[Choice]) -> list[dict[str, Any]] | None:
    """Combinations that no trial had yet; None where there are ranges."""
    if not all(choice.options for choice in choices):
        return None
    tried = [trial.params for trial in _done(study)]
    every = product(*(dict.fromkeys(choice.options) for choice in choices))
    named = ({choice.field: value for choice, value in zip(choices, values, strict=True)} for values in every)
    return [values for values in named if values not in tried]


def _refused_alike(study: "optuna.Study") -> str:
    """Why no run began, where the first two trials were refused for one reason: more of them would be too."""
    done = _done(study)
    reasons = {trial.user_attrs.get("outcome", "") for trial in done if "run" not in trial.user_attrs}
    return (
        str(*reasons) if len(done) >= 2 and len(reasons) == 1 and all("run" not in t.user_attrs for t in done) else ""
    )


def _done(study: "optuna.Study") -> "list[optuna.trial.FrozenTrial]":
    """Trials that ended by themselves, oldest first."""
    return [trial for trial in study.get_trials(deepcopy=False) if trial.user_attrs.get("done")]


def _since_best(study: "optuna.Study") -> int:
    """Trials since the one that is best so far."""
    done = _done(study)
    best = _best(study)
    return 0 if best is None else sum(trial.number > best.number for trial in done)


def _best(study: "optuna.Study") -> "optuna.trial.FrozenTrial | None":
    scored = [trial for trial in _done(study) if trial.state.name == "COMPLETE" and trial.value is not None]
    if not scored:
        return None
    sign = 1.0 if study.direction.name == "MINIMIZE" else -1.0
    return min(scored, key=lambda trial: sign * float(trial.value or 0.0))


def _trial(one: "optuna.trial.FrozenTrial") -> Trial:
    outcome = {"COMPLETE": "completed", "PRUNED": "stopped early"}.get(one.state.name, "failed")
    score = one.value if one.state.name == "COMPLETE" else None
    told = one.user_attrs.get("outcome", outcome)
    return Trial(one.number, dict(one.params), score, one.user_attrs.get("run", ""), told)


def _tuned(study: "optuna.Study", metric: str, costs: LabelCosts, ended: str) -> Tuned:
    best = _best(study)
    trials = [_trial(one) for one in _done(study)]
    return Tuned(metric, None if best is None else _trial(best), trials, costs.spent, ended)
