"""The objective of one level on one batch, as the coordinator follows it in h."""

from dataclasses import dataclass
from typing import Protocol

from parley.numerics.arrays import Array
from parley.numerics.losses import Loss, noise_floor


class Level(Protocol):
    """A function of h, with labels that the gate let out."""

    @property
    def release(self) -> int | None:
        """The label release that the curvature is made from; None where no label is in it."""

    @property
    def floor(self) -> float:
        """What the noise of labels alone costs."""

    def value(self, h: Array) -> float:
        """The mean over the batch."""

    def gradient(self, h: Array) -> Array:
        """Its derivative; h may hold a trajectory for each entry of a leading axis."""

    def curvature_product(self, h: Array, a: Array) -> Array:
        """Its second derivative times a."""


@dataclass(frozen=True, eq=False)
class LossLevel:
    """The loss that a spec names."""

    loss: Loss
    target: Array
    release: None = None

    @property
    def floor(self) -> float:
        """Of randomised labels."""
        return noise_floor(self.loss)

    def value(self, h: Array) -> float:
        """The mean over the batch."""
        return self.loss.value(h, self.target)

    def gradient(self, h: Array) -> Array:
        """Its derivative."""
        return self.loss.gradient(h, self.target)

    def curvature_product(self, h: Array, a: Array) -> Array:
        """Without a label in it."""
        return self.loss.curvature_product(h, a)
