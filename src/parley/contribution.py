"""What each party brings to a run: the value of every coalition of parties, and how it is shared out.

A coalition's value is a figure of held-out rows, measured by a run of the same spec in which only its members take
part. Such runs are what owners forbid by default: with sums over other partners one party's part of every row's score
can be subtracted, and with a coalition of one it is seen as it is. Each party's own policy decides (`differencing`,
`minimum_parties`); nothing here goes around it, and a coalition that is refused has no value.
"""

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from parley.client import Federation, Run, TunedCoefficients

MOST_PARTIES = 8
NOTHING = {"auc": 0.5, "r2": 0.0, "ks": 0.0}
"""What a model without any column scores, for figures where that does not depend on the labels."""
PREFERRED = ("auc", "r2", "accuracy")
LOWER_IS_BETTER = ("loss", "rmse", "mae", "brier score", "calibration error")

Members = frozenset[str]


class NotMeasurable(ValueError):
    """A run whose parties' contributions cannot be told."""


@dataclass(frozen=True)
class Coalition:
    """Some parties, and what they reach together."""

    members: tuple[str, ...]
    value: float | None
    run_id: str = ""
    refused: str = ""
    """Why there is no value."""


@dataclass(frozen=True)
class Share:
    """One party; None where a coalition that it takes was refused."""

    party: str
    leave_one_out: float | None
    """What all parties reach, less what they reach without this one."""
    shapley: float | None
    """The mean over all orders of joining of what this party adds."""
    alone: float | None
    gain: float | None
    """What all parties reach, less what this one reaches alone: why it joins."""


@dataclass(frozen=True)
class Contributions:
    """What was measured."""

    run_id: str
    metric: str
    together: float
    nothing: float | None
    shares: list[Share]
    coalitions: list[Coalition]


def metric_of(metrics: Mapping[str, float], wanted: str | None = None) -> str:
    """The figure that coalitions are valued by."""
    if wanted is not None:
        if wanted not in metrics:
            raise NotMeasurable(f"the run has no {wanted!r}, only {sorted(metrics)}: name one of them with --metric")
        return wanted
    for kind in PREFERRED:
        if f"test {kind}" in metrics:
            return f"test {kind}"
    raise NotMeasurable("the run has no figures of held-out rows: give it `split: {test: …}` and start it again")


def value_of_nothing(metric: str, given: float | None = None) -> float | None:
    """What a model without columns scores; None where that is not known."""
    return given if given is not None else NOTHING.get(metric.partition(" ")[2])


def coalition_spec(spec: str, members: Iterable[str], *, lower_only: bool = False) -> str:
    """The spec of a run in which only these parties take part.

    `lower_only` leaves out the upper level: what is measured is the linear model with the spec's own regularisation.
    """
    content = yaml.safe_load(spec)
    chosen = set(members)
    content["parties"] = [each for each in content["parties"] if _name(each) in chosen]
    aggregation = content.setdefault("privacy", {}).setdefault("aggregation", {})
    aggregation["minimum_parties"] = min(aggregation.get("minimum_parties", 2), len(chosen))
    for field in ("recovery", "threshold"):
        aggregation.pop(field, None)
    if len(chosen) == 1:  # there is nobody to hide among
        aggregation.update(kind="plain", minimum_parties=1)
    if lower_only:
        train = content["train"]
        if train["algorithm"] != "bambi" or (
            train.get("problem") != "hyper_parameters" and train.get("model", {}).get("kind") != "identity"
        ):
            raise NotMeasurable(
                "--lower-only refits a linear lower problem: `problem: hyper_parameters`, or `model: {kind: identity}`"
            )
        steps = max(10, train.get("lower", {}).get("steps", 1))
        train["upper"] = {**train.get("upper", {}), "steps": 0}
        train["lower"] = {**train.get("lower", {}), "warmup_steps": 0, "final_steps": steps}
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)


def measure(
    federation: "Federation",
    run: "Run",
    *,
    metric: str | None = None,
    nothing: float | None = None,
    leave_one_out: bool = False,
    lower_only: bool = False,
    told: Callable[[Coalition, int, int], None] = lambda *_: None,
) -> Contributions:
    """Run every coalition that the answer takes, and share out what they reach.

    Asked again it goes on: a coalition's run has the same request id, so the coordinator answers with the run there is.
    """
    spec = run.refresh().message.spec_yaml
    parties = [_name(each) for each in yaml.safe_load(spec)["parties"]]
    if run.state != "COMPLETED":
        raise NotMeasurable(f"{run.run_id} is {run.state}: wait until it is completed")
    if len(parties) > MOST_PARTIES:
        raise NotMeasurable(
            f"{2 ** len(parties) - 1} runs would be needed: this is for {MOST_PARTIES} parties or fewer"
        )
    chosen = metric_of(run.metrics, metric)
    wanted = list(_coalitions(parties, leave_one_out=leave_one_out))
    found: dict[Members, Coalition] = {}
    for place, members in enumerate(wanted):
        whole = len(members) == len(parties) and not lower_only
        known = Coalition(members, run.metrics[chosen], run.run_id) if whole else None
        one = known or _measured(federation, run.run_id, spec, members, chosen, lower_only)
        found[frozenset(members)] = one
        told(one, place + 1, len(wanted))
    together = found[frozenset(parties)]
    if together.value is None:
        raise NotMeasurable(f"all parties together could not be measured: {together.refused}")
    empty = value_of_nothing(chosen, nothing)
    values = {members: one.value for members, one in found.items() if one.value is not None}
    shares = shared_out(values, parties, empty, lower_is_better=chosen.endswith(LOWER_IS_BETTER))
    return Contributions(run.run_id, chosen, together.value, empty, shares, list(found.values()))


def shared_out(
    values: Mapping[Members, float], parties: Sequence[str], nothing: float | None, *, lower_is_better: bool = False
) -> list[Share]:
    """Leave-one-out, Shapley value, and gain of each party; positive is good."""
    sign = -1.0 if lower_is_better else 1.0
    known = {members: sign * value for members, value in values.items()}
    if nothing is not None:
        known[frozenset()] = sign * nothing
    every = frozenset(parties)
    fair = shapley(known, parties)
    shares = []
    for party in parties:
        alone, rest = known.get(frozenset({party})), known.get(every - {party})
        shares.append(
            Share(
                party,
                None if rest is None else known[every] - rest,
                None if fair is None else fair[party],
                None if alone is None else sign * alone,
                None if alone is None else known[every] - alone,
            )
        )
    return shares


def shapley(values: Mapping[Members, float], parties: Sequence[str]) -> dict[str, float] | None:
    """Shapley values from those of all coalitions, the empty one too; None where one is missing.

    L. S. Shapley: A value for n-person games, 1953.
    """
    count, found = len(parties), dict.fromkeys(parties, 0.0)
    if len(values) < 2**count:
        return None
    for party in parties:
        others = [each for each in parties if each != party]
        for size in range(count):
            weight = math.factorial(size) * math.factorial(count - size - 1) / math.factorial(count)
            for chosen in combinations(others, size):
                before = frozenset(chosen)
                found[party] += weight * (values[before | {party}] - values[before])
    return found


def column_rows(found: "Mapping[str, TunedCoefficients]", *, penalties: bool) -> list[dict[str, Any]]:
    """What each shared column is worth: relevance of tuned penalties, or |z| of a linear model's coefficients.

    A penalty that tuning has raised closes its column: relevance is its inverse, as a share of all shared columns'.
    A penalised model has no standard errors, but scaled columns: there the coefficients themselves are compared.
    """
    rows: list[dict[str, Any]] = []
    exact = any("standard_error" in one for tuned in found.values() for one in tuned.inference.values())
    for party, tuned in found.items():
        for column, value in tuned.columns.items():
            if column == "(intercept)":
                continue
            error = tuned.inference.get(column, {}).get("standard_error")
            if penalties:
                rows.append({"party": party, "column": column, "relevance": 1 / value})
            elif error:
                rows.append({"party": party, "column": column, "|z|": abs(value) / error})
            elif not exact:
                rows.append({"party": party, "column": column, "|coefficient|": abs(value)})
    if penalties and rows:
        total = sum(row["relevance"] for row in rows)
        rows = [{**row, "relevance": row["relevance"] / total} for row in rows]
    return sorted(rows, key=lambda row: -float(list(row.values())[-1]))


def _coalitions(parties: Sequence[str], *, leave_one_out: bool) -> Iterable[tuple[str, ...]]:
    sizes = (len(parties), len(parties) - 1) if leave_one_out else range(len(parties), 0, -1)
    for size in sizes:
        yield from combinations(parties, size) if size else ()


def _measured(
    federation: "Federation", run_id: str, spec: str, members: tuple[str, ...], metric: str, lower_only: bool
) -> Coalition:
    from parley.client import RequestRefused

    text = coalition_spec(spec, members, lower_only=lower_only)
    request = hashlib.sha256("\0".join(["contribution", run_id, text]).encode()).hexdigest()[:32]
    try:
        one = federation.start(text, request)
        if one.refresh().state in ("FAILED", "CANCELLED"):
            one.resume()
        return Coalition(members, one.result()[metric], one.run_id)
    except RequestRefused as refusal:
        return Coalition(members, None, refused=str(refusal))


def _name(party: Any) -> str:
    return str(party["name"] if isinstance(party, dict) else party)
