"""What crosses in a round of BAMBI, as the roles see it: an outcome and an ask go down, a sum of vectors comes up.

The coordinator makes outcomes as drafts and the gate turns them into releases; the codec takes releases only. A party
sees the same classes with the arrays that it decoded.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal

from parley.numerics.arrays import Array
from parley.protocols.rounds import Answer, Checkpoint, Finish, Keeps, keeps

RowSetName = Literal["lower", "upper", "test", "validation", "all"]
LinearSystem = Literal["newton", "adjoint"]


@dataclass(frozen=True)
class Gradient:
    """Gradients of the mean loss with respect to Σ_m h_m, made from noisy labels."""

    theta: Array | None = None
    """θ, (trajectories, batch, classes), of the lower loss."""
    vartheta: Array | None = None
    """ϑ, (batch, classes), of the upper loss."""
    step_length: float = 1.0
    """Length of the Newton step that precedes θ; before the first, what y is multiplied with. With ϑ, where x steps
    along the direct term alone: how much of its step size x may use."""


@dataclass(frozen=True)
class Coefficients:
    """s_j of the unbiased zeroth-order estimator."""

    values: tuple[float, ...]


@dataclass(frozen=True)
class CurvatureStep:
    """One step of conjugate gradients."""

    product: Array
    """L''(h) Σ_m S_m z_m / batch."""
    alpha: float
    beta: float
    solution_product: Array | None = None
    """L''(h) Σ_m S_m v_m / batch of the finished adjoint solution v."""
    upper_scale: float = 1.0
    """How much of its step size x may use; with the finished solution."""


@dataclass(frozen=True)
class LocalWork:
    """What a party needs to work on its own until the next exchange."""

    logits: Array
    """Σ_m h_m where the local steps begin, (rows, columns)."""
    labels: Array
    """ỹ: noisy classes, (rows,), or noisy target rows, (rows, classes)."""
    steps: int
    """K."""
    weights: tuple[float, ...] = ()
    """How much to add of the moves between the last exchanges, the newest first."""
    step_scale: float = 1.0
    """How much of their size the steps have."""


Outcome = Gradient | Coefficients | CurvatureStep | LocalWork


@dataclass(frozen=True)
class LowerForward:
    """Contribute embeddings of lower batch (k, t) along every trajectory."""

    k: int
    t: int


@dataclass(frozen=True)
class UpperForward:
    """Contribute embeddings of upper batch k."""

    k: int


@dataclass(frozen=True)
class DirectionalForward:
    """Contribute ⟨ŷ_m^j − y_m, ∇_{y_m} f⟩/μ for each direction j."""

    k: int


@dataclass(frozen=True)
class CurvatureForward:
    """Contribute S_m z_m and two scalars for one iteration of conjugate gradients."""

    k: int
    system: LinearSystem
    iteration: int


@dataclass(frozen=True)
class LocalForward:
    """Contribute embeddings of the rows of a local round."""

    k: int
    batch: int


@dataclass(frozen=True)
class RowsForward:
    """Contribute embeddings of rows of a set, for evaluation."""

    rows: RowSetName
    first: int
    count: int


Ask = (
    LowerForward
    | UpperForward
    | DirectionalForward
    | CurvatureForward
    | LocalForward
    | RowsForward
    | Checkpoint
    | Finish
)


def is_summed(ask: Ask) -> bool:
    """Whether the parties answer with addends of a sum (or only acknowledge)."""
    return not isinstance(ask, Checkpoint | Finish)


@dataclass(frozen=True)
class Round:
    """What the coordinator sends: the outcome of the round before and the next ask."""

    outcome: Outcome | None
    ask: Ask
    label_release: int | None = None
    """The label release that the outcome was made from; None where no label is in it."""
    participants: None = None
    """Every party holds columns that the sum needs."""

    @property
    def iteration(self) -> int:
        """The upper iteration."""
        return getattr(self.ask, "k", 0)

    @property
    def answer(self) -> Answer:
        """Addends, or an acknowledgement."""
        return "sum" if is_summed(self.ask) else "acknowledge"

    @property
    def keeps(self) -> Keeps:
        """What the ask makes the parties keep."""
        return keeps(self.ask)

    @property
    def cost_class(self) -> Hashable:
        """Asks of one type work on batches of one size; those for given rows say how many."""
        return type(self.ask).__name__, getattr(self.ask, "count", None)
