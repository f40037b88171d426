"""BAMBI's two roles in one process: the product's own steps, without sockets.

An estimator's error has nothing to do with the wire, so the toys drive the roles by hand; whatever is claimed about
rounds, bytes or privacy is measured between real processes (`parley.local`). The sum here is in the clear.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

import parley.coordinator.bambi.rounds as coordinator
import parley.party.bambi.steps as party
from parley.coordinator.programs import Report
from parley.numerics.losses import Logistic, Loss, Softmax, Squared
from parley.party.bambi.models import build_model
from parley.privacy.label_mechanisms import Kind, Schedule
from parley.privacy.label_vault import LabelPolicy, LabelVault
from parley.privacy.noise import KeyedNoise
from parley.protocols.bambi.settings import BambiSpec
from parley.spec.rows import RowSets

Array = NDArray[Any]
Rows = NDArray[np.int64]
Precision = Literal["float32", "float64"]


class VaultLabels:
    """Noisy targets straight from a vault, with no ledger: for one process that plays every role."""

    def __init__(self, vault: LabelVault) -> None:
        self._vault = vault

    def target(self, release: int, rows: Rows) -> Array:
        """Noisy targets of a release."""
        return self._vault.target(release, rows)

    def score(self, rows: Rows, h: Array) -> dict[str, float]:
        """Metrics on true labels."""
        score = self._vault.score(rows, h)
        return {score.accuracy_name: score.accuracy, "loss": score.loss}


@dataclass(frozen=True)
class InProcess:
    """A federation whose roles share a process."""

    problem: coordinator.Problem
    blocks: tuple[party.Block, ...]

    def start(self) -> list[party.State]:
        """Every party before the first round."""
        return [party.start(block) for block in self.blocks]


@dataclass(frozen=True)
class Trained:
    """How a run ended."""

    states: tuple[party.State, ...]
    rounds: int
    label_releases: int
    elements: int
    """Numbers that crossed, both ways and to or from every party."""
    metrics: dict[str, float]


def federate(
    settings: BambiSpec,
    features: Sequence[Array],
    labels: Array,
    rows: RowSets,
    *,
    seed: int = 0,
    dtype: Precision = "float64",
    policy: LabelPolicy | None = None,
    evaluate_every: int = 0,
) -> InProcess:
    """Put parties with these feature blocks and a coordinator with these labels into one process."""
    clean: Loss
    match settings.loss:
        case "softmax":
            outputs = int(labels.max()) + 1
            clean = Softmax(outputs)
        case "logistic":
            outputs, clean = 1, Logistic()
        case _:
            outputs, clean = 1, Squared()
    # A key per federation: these runs protect nobody, and must be the same every time.
    noise = KeyedNoise(seed.to_bytes(32, "big"))
    vault = LabelVault(labels, clean, policy or LabelPolicy("off"), noise, "in-process")
    precision = {"float32": torch.float32, "float64": torch.float64}[dtype]
    networks = [
        build_model("identity", block.shape[1], block.shape[1], dtype=precision)
        if settings.problem == "hyper_parameters" or settings.model.kind == "identity"
        else build_model(
            settings.model.kind,
            block.shape[1],
            settings.model.out,
            settings.model.widths,
            settings.model.activation,
            image_shape=settings.model.image_shape,
            dtype=precision,
        )
        for block in features
    ]
    sizes = tuple(party.upper_size(settings, network) for network in networks)
    blocks = tuple(
        party.Block(settings, network, np.ascontiguousarray(a, dtype=dtype), rows, seed, m, sizes, outputs)
        for m, (network, a) in enumerate(zip(networks, features, strict=True))
    )
    plan = coordinator.Plan(settings, rows, seed)
    problem = coordinator.Problem(
        plan, vault.loss_for_training(), VaultLabels(vault), outputs, dtype, evaluate_every, checkpoint_every=0
    )
    return InProcess(problem, blocks)


def train(
    federation: InProcess,
    states: Sequence[party.State] | None = None,
    observe: Callable[[Report], None] | None = None,
) -> Trained:
    """Drive every round of a run."""
    metrics: dict[str, float] = {}

    def note(report: Report) -> None:
        metrics.update(report.metrics)
        if observe is not None:
            observe(report)

    held = list(states or federation.start())
    generator = coordinator.rounds(federation.problem, 0, note)
    rounds, elements, releases = 0, 0, set[int]()
    current = next(generator)
    while True:
        rounds += 1
        addends = []
        for m, block in enumerate(federation.blocks):
            if current.outcome is not None:
                held[m] = party.apply(block, held[m], current.outcome)
            held[m], addend = party.contribute(block, held[m], current.ask)
            addends.append(np.asarray(addend, dtype=np.float64))
        if current.label_release is not None:
            releases.add(current.label_release)
        arrays = [value for value in vars(current.outcome or object).values() if isinstance(value, np.ndarray)]
        elements += sum(addend.size for addend in addends) + len(addends) * sum(array.size for array in arrays)
        try:
            current = generator.send(np.sum(addends, axis=0))
        except StopIteration:
            return Trained(tuple(held), rounds, len(releases), elements, metrics)


def label_policy(schedule: Schedule, epsilon: float | None = None, kind: Kind = "auto") -> LabelPolicy:
    """How the labels of an in-process run are protected."""
    return LabelPolicy(schedule, epsilon, kind)
