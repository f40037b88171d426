"""When a run ends before its last iteration, and which model it keeps."""

from typing import Literal

from pydantic import Field

from parley.spec.section import Section

_SMALLER_IS_BETTER = ("loss", "error", "mae", "rmse", "brier", "objective", "norm", "disagreement")


class StopSpec(Section):
    """Early stopping. The run keeps the model of the best evaluation, also if it ends by itself."""

    metric: str = "validation loss"
    """The figure to follow, as the run reports it."""
    patience: int = Field(default=5, ge=1, le=1000)
    """Evaluations without an improvement after which the run ends."""
    minimum_change: float = Field(default=0.0, ge=0)
    """What counts as an improvement: more than this, in the metric's own unit."""
    best: Literal["smallest", "largest"] | None = None
    """Which value is the best; if left out, the smallest of losses and errors and the largest of anything else."""

    @property
    def seeks(self) -> Literal["smallest", "largest"]:
        """Which value of the metric is the best."""
        if self.best is not None:
            return self.best
        return "smallest" if any(word in self.metric.lower() for word in _SMALLER_IS_BETTER) else "largest"
