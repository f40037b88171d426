"""Where a party stands within an upper iteration of BAMBI, and what it holds there.

    lower level, gradient steps   Ready → (DescentAsked → Descended)×N [→ DescentAsked → Linearised]
    lower level, Newton steps     Ready → NewtonAsked → Linearised → (CurvatureAsked → Solving → …)
                                  → ConfirmationAsked → Linearised → …
    upper gradient                Descended or Linearised → UpperAsked → Differentiated
    joint step on x and y         Ready → UpperAsked → Ready
    zeroth-order step on x        Differentiated → DirectionsAsked → Ready (`zeroth_order_local`: UpperAsked → Ready)
    implicit step on x            Differentiated → (CurvatureAsked → Solving → …) → CurvatureAsked → Ready

In a phase named …Asked the party has contributed and waits for the outcome; in the others it waits for an ask.
"""

from typing import NamedTuple

from torch import Tensor

from parley.numerics.arrays import Array
from parley.numerics.optimisers import Moments
from parley.party.bambi.lower_system import LowerBatch, Solve
from parley.protocols.bambi.messages import LowerForward


class Ready(NamedTuple):
    """Between two upper iterations."""


class Embedded(NamedTuple):
    """s_m of the batch of a lower round, along every trajectory."""

    ask: LowerForward
    s: Array


class DescentAsked(NamedTuple):
    """Gradient steps: waits for θ of the current batch."""

    trajectories: Array
    moments: Moments[Array]
    """Of every trajectory."""
    points: Tensor
    """Where the trajectories run: (1+Q, p_m), x, x + μu_1, …, x + μu_Q; or x alone, (p_m,)."""
    directions: Tensor
    """u_1 … u_Q; no row where only x itself is followed."""
    current: Embedded
    newest: Embedded
    """The current batch, or already the one after it."""


class Descended(NamedTuple):
    """Gradient steps: one more is done on every trajectory."""

    trajectories: Array
    moments: Moments[Array]
    points: Tensor
    directions: Tensor
    newest: Embedded
    """The batch of the last step, or already the one after it."""


class NewtonAsked(NamedTuple):
    """Newton steps: waits for θ where the iteration begins."""

    batch: LowerBatch


class ConfirmationAsked(NamedTuple):
    """Newton steps: waits for how much of the last step to take, and for θ there."""

    batch: LowerBatch
    step: Array


class Linearised(NamedTuple):
    """θ is known at this party's y: systems with the lower Hessian can be solved."""

    batch: LowerBatch
    theta: Array


class UpperAsked(NamedTuple):
    """Waits for ϑ."""

    k: int
    lower: Descended | Linearised | Ready
    s: Tensor
    """s_m of the upper batch, with its graph to x; without one where its features lie in shards."""
    weights: Tensor
    """x as the graph's leaf."""
    rows: Array
    """The rows of the batch."""


class Differentiated(NamedTuple):
    """The upper objective's gradients are known."""

    lower: Descended | Linearised
    direct: Tensor
    """∇_x f at fixed y."""
    gradient: Array
    """∇_{y_m} f."""


class DirectionsAsked(NamedTuple):
    """Waits for s_j of every direction."""

    k: int
    directions: Tensor
    direct: Tensor


class NewtonSystem(NamedTuple):
    """Its solution is the next Newton step."""

    batch: LowerBatch


class AdjointSystem(NamedTuple):
    """Its solution v turns ∇f into the hyper-gradient."""

    batch: LowerBatch
    theta: Array
    direct: Tensor


class CurvatureAsked(NamedTuple):
    """Conjugate gradients: waits for the product with L''(h), and for α and β."""

    k: int
    system: NewtonSystem | AdjointSystem
    solve: Solve
    z: Array
    """M⁻¹ residual."""


class Solving(NamedTuple):
    """Conjugate gradients: one more iteration is done."""

    system: NewtonSystem | AdjointSystem
    solve: Solve


Phase = (
    Ready
    | DescentAsked
    | Descended
    | NewtonAsked
    | ConfirmationAsked
    | Linearised
    | UpperAsked
    | Differentiated
    | DirectionsAsked
    | CurvatureAsked
    | Solving
)
