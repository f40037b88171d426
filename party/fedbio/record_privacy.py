"""FedBiO with a bound for each record: clipped contributions, and noise that the parties share inside the averages.

Every party takes one step from the averages, which everybody knows, and a record adds its own gradient to it:

    training row i   (−γα σ(x_i)∇ℓ_i(y),  −τα σ(x_i)∇²ℓ_i(y) u) / B
    checked row j    (0, τα ∇ℓ_j(y)) / B_f

each clipped to norm C/B; the ridge is no record's. Replacing a record moves the sum by at most 2C/B. Its weight x_i
stays at the party and depends on the averages and on the record alone. Metrics are sums over records too: (loss,
mistake) of each is clipped and noised alike. u is projected when its average arrives, where that is post-processing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from parley.numerics.neumann import project_ball
from parley.numerics.storm import Vector
from parley.party.fedbio.objectives import DataCleaning, Measures, Rows
from parley.party.fedbio.steps import Blocks, Party, Randomness, RoundMismatch, Settings, State
from parley.party.fedbio.tasks import Cleaning
from parley.party.roles import Opened
from parley.privacy.accounting import RecordCounts
from parley.privacy.noise_shares import NoiseShare, clipped
from parley.privacy.permanent_noise import number_tags, tag_records
from parley.privacy.record_releases import RecordReleases, RunTerms
from parley.protocols.fedbio.messages import AveragingRound
from parley.protocols.fedbio.settings import FedbioSpec, RecordPrivacySpec
from parley.protocols.rounds import MEASURE_UNIT

LARGEST_LOSS = 2.0
"""Norm to which (loss, mistake) of a record is clipped in metrics."""


@dataclass(frozen=True, slots=True)
class PrivateParty(Party):
    """A party whose sums carry noise."""

    objective: DataCleaning
    clip: float
    averages: NoiseShare
    metrics: NoiseShare
    releases: RecordReleases
    schedule: tuple[int, ...]
    """Rounds after which metrics are due."""
    rounds: int

    def contribute(self, state: State, instruction: AveragingRound, randomness: Randomness) -> tuple[State, Vector]:
        """Carry out one instruction; the addend has this party's share of the noise in it."""
        if instruction.phase == "variables":
            if instruction.k >= self.rounds:
                raise RoundMismatch(f"round {instruction.k} is not due: {self.rounds} rounds were accounted for")
            state = self._adopt(state, instruction, randomness)
            at = replace(state.variables, u=project_ball(state.variables.u, self.settings.radius))
            x, value = self._moved(at, instruction.k, randomness)
            noised = self.releases.noised(self.averages, value, instruction.k)
            return replace(state, variables=replace(at, x=x)), noised
        if instruction.phase == "evaluate":
            if instruction.k not in self.schedule:
                raise RoundMismatch(f"metrics of round {instruction.k} are not due: they were not accounted for")
            variables = state.variables if instruction.mean is None else self._unpack(state.variables, instruction.mean)
            return state, self._measured(variables.y, instruction.k)
        return Party.contribute(self, state, instruction, randomness)

    def _moved(self, at: Blocks, k: int, randomness: Randomness) -> tuple[Vector, Vector]:
        settings, objective = self.settings, self.objective
        upper_rows, lower_rows = batches(settings, objective, randomness, k)
        alpha, ridge = settings.schedule.step(k), objective.ridge
        gamma, tau = settings.gamma * alpha, settings.tau * alpha
        gradients, products = objective.record_terms(at.x, at.y, at.u, lower_rows)
        checked = objective.checked_gradients(at.y, upper_rows)
        lower = np.hstack([-gamma * gradients, -tau * products]) / settings.lower_batch
        upper = np.hstack([np.zeros_like(checked), tau * checked]) / settings.upper_batch
        bound = self.clip / settings.lower_batch
        moved = sum(self.averages.summed(clipped(each, bound)) for each in (lower, upper))
        still = np.concatenate([(1 - gamma * ridge) * at.y, (1 - tau * ridge) * at.u])
        cross = objective.lower_terms(at.x, at.y, at.u, lower_rows).cross
        return at.x + settings.eta * alpha * cross, self.averages.on_grid(still) + moved

    def _measured(self, y: Vector, k: int) -> Vector:
        objective = self.objective
        losses, mistakes = objective.checked_losses(y)
        parts = [np.stack([losses, mistakes, np.zeros_like(losses)], axis=1)]
        tested = 0
        if objective.test is not None:
            wrong = (objective.predict(y, objective.test[0]) != objective.test[1]).astype(np.float64)
            parts.append(np.stack([np.zeros_like(wrong), np.zeros_like(wrong), wrong], axis=1))
            tested = len(wrong)
        each = clipped(np.concatenate(parts) / MEASURE_UNIT, LARGEST_LOSS / MEASURE_UNIT)
        noised = self.releases.noised(self.metrics, self.metrics.summed(each), self.rounds + k) * MEASURE_UNIT
        loss, errors, test_errors = (float(value) for value in noised)
        return Measures(loss, errors, float(len(losses)), test_errors, float(tested)).vector()


def batches(settings: Settings, objective: DataCleaning, randomness: Randomness, k: int) -> tuple[Rows, Rows]:
    """Checked and training rows of round k."""
    return (
        randomness.rows("upper", k, 0, objective.upper_rows, settings.upper_batch),
        randomness.rows("lower", k, 0, objective.lower_rows, settings.lower_batch),
    )


def private_party(opened: Opened, task: Cleaning, settings: Settings, randomness: Randomness) -> PrivateParty:
    """The party of a run with record privacy; nothing is charged yet."""
    train = opened.spec.settings(FedbioSpec)
    privacy = train.record_privacy
    assert privacy is not None and opened.privacy is not None  # noqa: S101, PT018 (the caller has looked)
    averages = NoiseShare(2 * privacy.clip / train.batch, privacy.noise, privacy.honest)
    metrics = NoiseShare(2 * LARGEST_LOSS / MEASURE_UNIT, privacy.noise, privacy.honest)
    for share in (averages, metrics):
        share.check(opened.spec.privacy.aggregation.resolved[1])
    schedule = tuple(_evaluations(train.rounds, opened.spec.evaluate_every))
    releases = _releases(opened, task, settings, randomness, averages, privacy, schedule)
    return PrivateParty(settings, task.objective, privacy.clip, averages, metrics, releases, schedule, train.rounds)


def _releases(
    opened: Opened,
    task: Cleaning,
    settings: Settings,
    randomness: Randomness,
    averages: NoiseShare,
    privacy: RecordPrivacySpec,
    schedule: tuple[int, ...],
) -> RecordReleases:
    assert opened.privacy is not None  # noqa: S101 (of a session that trains)
    local, objective, rounds = opened.privacy(), task.objective, opened.spec.settings(FedbioSpec).rounds
    counts = np.zeros(len(task.record_ids), dtype=np.int64)
    for k in range(rounds):
        upper_rows, lower_rows = batches(settings, objective, randomness, k)
        counts[lower_rows] += 1
        counts[objective.lower_rows + upper_rows] += 1
    counts[objective.lower_rows :] += len(schedule)  # metrics are over checked and test rows
    dataset = f"features/{opened.spec.table_of(opened.index)}"
    values = [(objective.features, objective.labels), (objective.validation_features, objective.validation_labels)]
    values += [] if objective.test is None else [objective.test]
    rows = np.concatenate([np.hstack([features, labels[:, None]]) for features, labels in values])
    return RecordReleases(
        local.ledger,
        local.noise,
        opened.run_id,
        tuple(opened.names),
        local.rows,
        RunTerms(privacy.epsilon, privacy.delta),
        tag_records(local.noise, dataset, task.record_ids, number_tags(rows.astype(np.float64))),
        averages.event(2 * objective.lower_size),
        RecordCounts(counts),
        rounds + len(schedule),
    )


def _evaluations(rounds: int, every: int) -> Iterator[int]:
    """After which rounds a run takes metrics: when they are due, and after the last."""
    for k in range(rounds):
        if k + 1 == rounds or (every and (k + 1) % every == 0):
            yield k
