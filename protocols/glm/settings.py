"""Settings of generalised linear models."""

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from parley.spec.algorithms import AlgorithmSettings, Layout
from parley.spec.class_weights import ClassWeights, check_class_weights
from parley.spec.protection import ProtectionSpec
from parley.spec.section import Section

Family = Literal["linear", "logistic", "poisson", "gamma", "tweedie"]


class PenaltySpec(Section):
    """strength · (l1_ratio · ‖w‖₁ + (1 − l1_ratio)/2 · ‖w‖²), added to the mean loss; the intercept is free."""

    strength: float = Field(default=0.0, ge=0, le=1e6)
    """α; 0 for none, and then there are standard errors."""
    l1_ratio: float = Field(default=0.0, ge=0, le=1)
    """0 is ridge, 1 is the lasso, between them lies the elastic net."""
    steps: int = Field(default=3000, ge=1, le=100_000)
    """Most shrinking steps (l1_ratio above 0): one small round trip each."""
    tolerance: float = Field(default=1e-8, ge=1e-9, lt=1)
    """Shrinking stops when coefficients move and differ by less than this, relative to their length."""


class GlmSpec(AlgorithmSettings):
    """A generalised linear model of all parties' columns: the one that their pooled table would give."""

    layout: ClassVar[Layout] = "vertical"
    validates = "at_end"
    algorithm: Literal["glm"]
    """This algorithm."""
    family: Family = "logistic"
    """Distribution and link: linear (normal, identity), logistic (two classes), poisson, gamma, tweedie (log link)."""
    power: float = Field(default=1.5, gt=1, lt=2)
    """Of tweedie: the variance is the mean to this power."""
    exposure: str | None = None
    """A label table of the coordinator, about the same rows, with how long or how much each was observed (poisson,
    gamma, tweedie): its logarithm is the offset, and predictions are for one unit of it."""
    penalty: PenaltySpec = PenaltySpec()
    """Ridge, lasso or elastic net."""
    class_weights: ClassWeights = None
    """How much rows of each class count: `balanced`, or a weight for each class by its name; alike if left out. With
    exact labels only, and then there are no standard errors."""

    @model_validator(mode="after")
    def _strength_given(self) -> Self:
        if self.penalty.l1_ratio and not self.penalty.strength:
            raise ValueError("penalty: `l1_ratio` shares out a `strength`, which is 0: give one, or leave both out")
        return self

    def check(self, privacy: ProtectionSpec, parties: list[str]) -> None:  # noqa: ARG002 (any parties will do)
        """Refuse a protection that this algorithm cannot give."""
        mechanism = privacy.labels.mechanism
        if self.family != "logistic" and mechanism != "off":
            raise ValueError(
                f"`family: {self.family}` has regression targets, whose noise this algorithm does not correct for: "
                "write `labels: {mechanism: off}` to send exact coefficients, or use `family: logistic`"
            )
        privacy.labels.check_kind(real=self.family != "logistic")
        check_class_weights(self.class_weights, classes=self.family == "logistic", privacy=privacy)
        if self.exposure is not None and self.family in ("linear", "logistic"):
            raise ValueError(
                f"`exposure` is for poisson, gamma and tweedie, and {self.family} has no log link: leave it out"
            )
        if mechanism == "per_step":
            raise ValueError(
                "labels are released once in a run of glm, there are no steps: write `labels: {mechanism: once}`"
            )

    @property
    def loss(self) -> str:
        """The loss whose labels this family takes: `logistic` for two classes, `squared` for numbers."""
        return "logistic" if self.family == "logistic" else "squared"

    @property
    def variance_power(self) -> float | None:
        """The variance is the mean to this power; None for classes."""
        powers = {"linear": 0.0, "logistic": None, "poisson": 1.0, "gamma": 2.0}
        return powers.get(self.family, self.power)

    @property
    def run_length(self) -> int:
        """The solution is found at once."""
        return 1
