"""The `train` section of a spec."""

from typing import ClassVar, Literal

from pydantic import Field

from parley.spec.algorithms import AlgorithmSettings, Layout


class RidgeSpec(AlgorithmSettings):
    """Every party has rows of the same columns and their targets; only sums over all parties are seen."""

    layout: ClassVar[Layout] = "horizontal"
    algorithm: Literal["federated_ridge"]
    """This algorithm."""
    penalty: float = Field(default=0.01, gt=0)
    """λ of the mean squared error + λ‖w‖²; the intercept is free."""

    @property
    def run_length(self) -> int:
        """The solution is found at once."""
        return 1
