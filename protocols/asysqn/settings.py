"""Settings of AsySQN (asynchronous quasi-Newton for vertical generalised linear models) and of its relatives."""

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from parley.spec.algorithms import AlgorithmSettings, Layout
from parley.spec.class_weights import ClassWeights, check_class_weights
from parley.spec.protection import ProtectionSpec
from parley.spec.section import Section


class CurvatureSpec(Section):
    """The L-BFGS memory of each party's own block."""

    memory: int = Field(default=10, ge=1, le=1000)
    """Pairs m that are kept."""
    damping: Literal["floor", "eq12"] = "floor"
    """What a pair is damped towards: δ (`floor`), or γ_k as the paper prints it (`eq12`, about twice the rounds)."""
    scale: Literal["largest", "last"] = "largest"
    """Curvature assumed in directions that no pair covers: the largest in memory, or the newest pair's γ_k as printed,
    which can rebound by orders of magnitude."""
    delta: float = Field(default=0.01, gt=0, lt=1e8)
    """δ, the floor of the curvature."""
    pair_every: int = Field(default=10, ge=1, le=100_000)
    """Own steps L that one pair spans."""


class AsynchronySpec(Section):
    """How far asynchronous parties may drift apart."""

    staleness: int = Field(default=1024, ge=0)
    """Most calls of other parties between a party's reading of θ and its step; an older reading is asked for anew."""
    steps_alone: int = Field(default=16, ge=0, le=1_000_000)
    """Own steps on the others' last known values while a party cannot be reached; then the party waits."""
    waiting_requests: int = Field(default=64, ge=1, le=4096)
    """Requests that may wait for one party's answer; beyond that it refuses, and the requester backs off."""
    answer_seconds: float = Field(default=10.0, gt=0, le=3600)
    """A sum that is not there after so long counts as failed."""


class AsysqnSpec(AlgorithmSettings):
    """A linear model whose columns lie at different parties; each party steps on its own block.

    `split.lower` and `split.upper` together are the training rows. Numbers are float64 throughout.
    """

    layout: ClassVar[Layout] = "vertical"
    validates: ClassVar[Literal["split", "always", "never"]] = "split"
    algorithm: Literal["asysqn"]
    """This algorithm."""
    schedule: Literal["asynchronous", "synchronous"] = "asynchronous"
    """Nobody waits for anybody (AsySQN), or a barrier at each round (SynSQN)."""
    estimator: Literal["sgd", "svrg", "saga"] = "svrg"
    """How the gradient is estimated from a batch; `sgd` needs `step_decay`."""
    direction: Literal["quasi_newton", "first_order"] = "quasi_newton"
    """Scale the gradient by the party's own curvature, or not (AFSGD-VP, AFSVRG-VP, AFSAGA-VP)."""
    loss: Literal["logistic", "ridge", "squared_hinge"] = "logistic"
    """Loss of the margin θ = Σ_ℓ w_ℓᵀx_ℓ."""
    labels_at: Literal["parties", "coordinator"] = "parties"
    """Every party has the label column in its table (the paper), or only the coordinator, which returns ∂L/∂θ."""
    class_weights: ClassWeights = None
    """How much rows of each class count: `balanced`, or a weight for each class by its name; alike if left out. With
    exact labels and `labels_at: coordinator` only."""
    steps: int = Field(default=1000, ge=0, le=100_000_000)
    """Rounds of the run: aggregation calls by any party, or barrier rounds; snapshots count."""
    step_size: float = Field(default=0.3, gt=0)
    """γ of quasi_newton: 0.3 carries across data sets; first_order has to be tuned (2.5 on a9a)."""
    step_decay: float | None = Field(default=None, gt=0)
    """Own steps after which the step size has halved; null keeps it constant."""
    batch: int = Field(default=1024, ge=1)
    """Rows b of a batch; small ones lose the benefit of curvature."""
    regularisation: float = Field(default=1e-4, ge=0, le=1e6)
    """λ of (λ/2)‖w‖²."""
    snapshot_every: int = Field(default=32, ge=1)
    """Own steps between SVRG's snapshots."""
    curvature: CurvatureSpec = CurvatureSpec()
    """Settings of quasi_newton."""
    asynchrony: AsynchronySpec = AsynchronySpec()
    """Settings of the asynchronous schedule."""
    target: float | None = Field(default=None, gt=0)
    """End the run once the objective is within this of `optimum`; null makes all `steps`."""
    optimum: float | None = None
    """f*, where it is known: the run then reports its distance from it. `target` counts from 0 without it."""
    watch_rows: int | None = Field(default=None, ge=1)
    """Training rows, fixed by the seed, on which the objective is watched; null takes all."""
    turn_seconds: float = Field(default=0.0, ge=0, le=3600)
    """A party's update takes at least this long divided by its `speed`, asleep: for studies of slow parties."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.labels_at == "coordinator" and self.loss == "squared_hinge":
            raise ValueError("labels_at: coordinator covers logistic and ridge; use `labels_at: parties` here")
        return self

    def check(self, privacy: ProtectionSpec, parties: list[str]) -> None:
        """Refuse a protection that this algorithm cannot give."""
        if len(parties) < 3 and privacy.aggregation.kind != "plain":
            raise ValueError(
                "asysqn parties see sums of θ, and with two of them a sum gives away the other: add a party"
            )
        protected = privacy.labels.mechanism != "off"
        if self.labels_at == "parties":
            if self.class_weights is not None:
                raise ValueError("class_weights are the coordinator's to apply: write `labels_at: coordinator`")
            return
        privacy.labels.check_kind(real=self.loss == "ridge")
        check_class_weights(self.class_weights, classes=self.loss != "ridge", privacy=privacy)
        if self.target is not None and protected:
            raise ValueError("a run that stops by its loss tells the parties about labels: leave `target` out")

    @property
    def run_length(self) -> int:
        """Iterations of the whole run."""
        return self.steps

    @property
    def is_asynchronous(self) -> bool:
        """Whether parties run a loop of their own."""
        return self.schedule == "asynchronous"

    @property
    def works_unattended(self) -> bool:
        """Loops go on while someone is away, within the bound of staleness."""
        return self.is_asynchronous
