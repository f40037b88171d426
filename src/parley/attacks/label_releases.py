"""Labels from what leaves their gate: in one run, and averaged over many."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parley.attacks.findings import Finding, bounded, stopped, unbounded
from parley.attacks.labels import ATTACKS, View, cap, log_likelihoods, margin
from parley.attacks.stand_in import StandIn
from parley.coordinator.labels import LabelAccess, ReleasePlan
from parley.privacy.accounting import RecordCounts
from parley.privacy.label_gate import LabelGate
from parley.privacy.label_mechanisms import choose_mechanism
from parley.privacy.ledger import BudgetExhausted, Ledger, LedgerConflict
from parley.privacy.noise import new_key
from parley.services.coordinator.programs import coordinator_side
from parley.simulation.runs import scratch_ledger
from parley.tables.loading import Labels

MOST_RELEASES = 8
KNOWN_SHARE = 0.1
ONE_RUN, MANY_RUNS = "label inference", "label averaging across runs"


@dataclass(frozen=True)
class _Opened:
    gate: LabelGate
    plan: ReleasePlan
    labels: Labels


class _WatchedAccess(LabelAccess):
    """Remembers the gate that a program opened."""

    opened: "list[_Opened]"

    def gate(
        self, labels: Labels, loss: Any, plan: ReleasePlan, dtype: type[np.floating[Any]] = np.float32
    ) -> LabelGate:
        gate = super().gate(labels, loss, plan, dtype)
        self.opened.append(_Opened(gate, plan, labels))
        return gate


def _opened(subject: StandIn, ledger: Ledger, key: bytes, run_id: str) -> _Opened | None:
    """The gate of a run's labels; None where the coordinator releases none."""
    access = _WatchedAccess(subject.spec, run_id, subject.labels.load, ledger, key)
    object.__setattr__(access, "opened", [])
    coordinator_side(subject.spec).program(subject.spec, access)
    return access.opened[0] if access.opened else None


def infer_labels(subject: StandIn) -> list[Finding]:
    """All attacks on the releases of one run; the best of them counts."""
    found = _opened(subject, scratch_ledger(), new_key(), "one-run")
    if found is None:
        return []
    settings, classes = subject.spec.privacy.labels, subject.classes
    rows, releases = found.plan.trained_rows, _releases(found, subject)
    truth = found.labels.values[rows]
    targets = [found.gate.target(release, rows) for release in range(releases)]
    shares = _shares(subject, found, targets, truth)
    best = max(shares, key=lambda name: shares[name])
    told = f"{best}: {shares[best]:.0%} of {len(rows)} labels right ({1 / classes:.0%} by chance)"
    slack = margin(1 / classes, len(rows))
    if settings.mechanism == "off":
        remedy = "set privacy.labels to {mechanism: once, epsilon: 3}"
        return [unbounded(ONE_RUN, "party", told, shares[best], 1 / classes + slack, remedy)]
    epsilon = settings.epsilon * (releases if settings.mechanism == "per_step" else 1)
    limit = cap(epsilon, classes)
    name = f"ε = {epsilon:g} ({settings.mechanism}): {limit:.0%}"
    return [bounded(ONE_RUN, "party", told, shares[best], min(1.0, limit + margin(limit, len(rows))), name)]


def average_labels(subject: StandIn, runs: int = 20) -> list[Finding]:
    """The same run many times under new names: what its noisy labels say together, against the ε of one run."""
    ledger, key = scratch_ledger(), new_key()
    settings, classes = subject.spec.privacy.labels, subject.classes
    if settings.mechanism == "off":
        return []
    mechanism = choose_mechanism(settings.mechanism, classes, settings.epsilon, settings.kind)
    scores, released = np.zeros((subject.rows, classes)), np.zeros(subject.rows, dtype=bool)
    made, refused = 0, ""
    for number in range(runs):
        try:
            found = _opened(_renamed(subject, number), ledger, key, f"run-{number}")
            if found is None:
                return []
            rows = found.plan.trained_rows
            target = np.asarray(found.gate.target(0, rows), dtype=np.float64)
        except (BudgetExhausted, LedgerConflict) as refusal:
            refused = f", then refused: {type(refusal).__name__}"
            break
        made += 1
        released[rows] = True
        told = log_likelihoods(mechanism, target) if target.shape[1] > 1 else np.hstack([0.5 - target, target - 0.5])
        scores[rows] += told  # a draw that is repeated scales a row's scores, and changes no guess
    if not made:
        return [stopped(MANY_RUNS, "party", "no run was started", refused)]
    truth = subject.truth[released]
    share = float((scores[released].argmax(axis=1) == truth).mean())
    limit = cap(settings.epsilon, classes)
    words = f"{share:.0%} of {len(truth)} labels right after {made} runs{refused}"
    bound = min(1.0, limit + margin(limit, len(truth)))
    guarantee = f"ε = {settings.epsilon:g} for all runs together: {limit:.0%}"
    remedy = "keep the noise of a label table for all runs, or charge all of them to one budget"
    return [bounded(MANY_RUNS, "party", words, share, bound, guarantee, remedy)]


def _renamed(subject: StandIn, number: int) -> StandIn:
    return replace(subject, spec=subject.spec.model_copy(update={"seed": subject.spec.seed + number}))


def _releases(found: _Opened, subject: StandIn) -> int:
    """How often the most exposed record is released, as far as it is rehearsed."""
    if subject.spec.privacy.labels.mechanism != "per_step":
        return 1
    batches = [found.plan.released_rows(number) for number in range(min(found.plan.releases, MOST_RELEASES))]
    return int(RecordCounts.of_batches(subject.rows, batches).maximum)


def _shares(subject: StandIn, found: _Opened, targets: list[Any], truth: NDArray[Any]) -> dict[str, float]:
    """The share of right guesses of each attack."""
    if subject.spec.train.model_dump().get("loss", "softmax") != "softmax":
        guesses = np.mean([np.asarray(target)[:, -1] for target in targets], axis=0) > 0.5
        return {"threshold": float((guesses == truth).mean())}
    rng = np.random.default_rng(5)
    logits = rng.normal(size=(len(targets), len(truth), subject.classes)).astype(np.float32)
    loss = found.gate.loss
    pairs = zip(logits, targets, strict=True)
    gradients = np.stack([loss.gradient(h, target) * len(truth) for h, target in pairs])
    settings = subject.spec.privacy.labels
    off = settings.mechanism == "off"
    mechanism = None if off else choose_mechanism(settings.mechanism, subject.classes, settings.epsilon, settings.kind)
    known = int(KNOWN_SHARE * len(truth))
    view = View(gradients, logits, mechanism, loss, truth[:known])
    return {
        name: float((attack(view, np.random.default_rng(1))[known:] == truth[known:]).mean())
        for name, attack in ATTACKS.items()
    }
