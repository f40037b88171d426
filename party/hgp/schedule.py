"""How the phases of HGP run, by outer iteration: steps, batches and the clock of the network."""

from dataclasses import dataclass
from typing import Protocol

from parley.numerics.streams import stream
from parley.party.hgp import steps as hgp
from parley.protocols.decentralised.messages import Phase
from parley.protocols.hgp.settings import HgpSpec
from parley.protocols.tensor.codec import MessageInvalid


class Schedule(Protocol):
    """How the phases of every outer iteration run; the same at every party."""

    def training(self, k: int) -> hgp.Training:
        """The inner problem's settings."""

    def hyper_gradient(self, k: int) -> hgp.Hgp:
        """The hyper-gradient's settings."""

    def first_step(self, k: int, phase: Phase) -> int:
        """Where a phase begins in the network's schedule."""


@dataclass(frozen=True)
class SpecSchedule:
    """The schedule that a run's spec describes."""

    train: HgpSpec
    seed: int

    def training(self, k: int) -> hgp.Training:
        """The inner problem's settings."""
        inner = self.train.inner
        return hgp.Training(
            steps=self.train.inner_steps,
            learning_rate=inner.learning_rate,
            milestones=inner.milestones,
            decay=inner.decay,
            batch_size=inner.batch,
            seed=iteration_seed(self.seed, k),
            push_steps=inner.push_steps,
        )

    def hyper_gradient(self, k: int) -> hgp.Hgp:
        """The hyper-gradient's settings."""
        if not self.train.has_hyper:
            raise MessageInvalid("a run without hyper-parameters has no hyper-gradient")
        hyper, form = self.train.hyper, hgp.Form(self.train.hyper.form)
        return hgp.Hgp(hyper.rounds, hyper.push_steps, hyper.step_size, form, hyper.batch, iteration_seed(self.seed, k))

    def first_step(self, k: int, phase: Phase) -> int:
        """Where a phase begins in the network's schedule."""
        return self.train.first_step(k, phase)


def iteration_seed(seed: int, k: int) -> int:
    """The seed of one outer iteration's batches."""
    return int(stream(seed, "hgp/iteration", k).bit_generator.random_raw()) >> 1
