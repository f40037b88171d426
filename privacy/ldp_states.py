"""What an agent of LDP-DSBO would send at a step, and the only form in which it may leave: under Laplace noise."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parley.privacy.laplace_noise import add_laplace
from parley.privacy.ldp_accounting import Schedules
from parley.privacy.noise import KeyedNoise

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class StateDraft:
    """What would leave at one step; only the gate may turn it into something that does."""

    x: Vector
    y: Vector
    z: Vector
    step: int


@dataclass(frozen=True)
class NoisedState:
    """x + χ, y + ζ, z + ϑ of one agent at one step."""

    noised_x: Vector
    noised_y: Vector
    noised_z: Vector
    step: int


def noise_draft(draft: StateDraft, scales: Schedules, noise: KeyedNoise, run: str) -> NoisedState:
    """Gate: add χ, ζ and ϑ of this step; the same bytes for every neighbour and at every retry."""
    nu = scales.at(draft.step)
    return NoisedState(
        noised_x=add_laplace(draft.x, float(nu[0]), noise, run, draft.step, "x"),
        noised_y=add_laplace(draft.y, float(nu[1]), noise, run, draft.step, "y"),
        noised_z=add_laplace(draft.z, float(nu[2]), noise, run, draft.step, "z"),
        step=draft.step,
    )
