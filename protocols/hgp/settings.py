"""Settings of HGP (hyper-gradient push): decentralised hyper-parameters, influence of rows, personalisation."""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from parley.protocols.decentralised.settings import NetworkSpec, class_names
from parley.spec.algorithms import AlgorithmSettings, Layout
from parley.spec.protection import ProtectionSpec
from parley.spec.section import Section, Widths

TwoClasses = Annotated[tuple[str, ...], Field(min_length=2, max_length=2)]
MOST_STEPS = 10_000_000


class RegularisationSpec(Section):
    """Logistic regression with one regularisation coefficient per coordinate and party, tuned on validation rows."""

    kind: Literal["regularisation"]
    """This task."""
    classes: TwoClasses
    """Both classes as the label columns write them; the second one is the positive one."""
    initial: float = Field(default=0.01, gt=0, le=1e3)
    """The coefficients that the run begins with."""
    lowest: float = Field(default=1e-4, gt=0, le=1e3)
    """No coefficient falls below this: the inner problem stays strongly convex."""

    _names = field_validator("classes", mode="before")(class_names)


class InfluenceSpec(Section):
    """How the total validation loss would change without each training row; a party learns of its own rows alone."""

    kind: Literal["influence"]
    """This task."""
    classes: TwoClasses
    """Both classes as the label columns write them; the second one is the positive one."""
    weight_decay: float = Field(default=0.01, gt=0, le=1e3)
    """L2 coefficient; makes the problem strongly convex."""

    _names = field_validator("classes", mode="before")(class_names)


class PersonalisationSpec(Section):
    """A shared classifier that each party adapts by a few parameters of its own."""

    kind: Literal["personalisation"]
    """This task."""
    method: Literal["hgp_pl", "hgp_mtl", "sgp", "local"] = "hgp_pl"
    """A class mask, a mixture of shared models, one shared model, or no communication at all."""
    classes: tuple[str, ...] = Field(min_length=2, max_length=10_000)
    """Every class as the label columns write it; a party need not have rows of each."""
    hidden: Widths = Field(default=(), max_length=8)
    """Widths of hidden layers; none for softmax regression."""
    components: int = Field(default=3, ge=2, le=64)
    """Shared models that hgp_mtl mixes."""
    weight_decay: float = Field(default=1e-3, gt=0, le=1e3)
    """L2 coefficient of the shared model."""
    hyper_decay: float = Field(default=1e-3, ge=0, le=1e3)
    """L2 coefficient of a party's own parameters."""

    _names = field_validator("classes", mode="before")(class_names)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if len(set(self.classes)) != len(self.classes):
            raise ValueError("`classes` lists one twice")
        if any(width < 1 or width > 65536 for width in self.hidden):
            raise ValueError("hidden widths lie between 1 and 65536")
        return self


Task = Annotated[RegularisationSpec | InfluenceSpec | PersonalisationSpec, Field(discriminator="kind")]


class InnerSpec(Section):
    """Stochastic gradient push on the inner problem."""

    steps: int = Field(default=1000, ge=1, le=MOST_STEPS)
    """Gradient steps per outer iteration, each from where the last iteration ended."""
    push_steps: int = Field(default=1, ge=1, le=10_000)
    """Push-Sum steps after each gradient step; 1 is the paper's SGP, more of them bring it nearer to exact descent."""
    learning_rate: float = Field(default=0.1, gt=0)
    """Of the first gradient steps."""
    milestones: tuple[int, ...] = Field(default=(), max_length=64)
    """Gradient steps at which the learning rate is multiplied by `decay`."""
    decay: float = Field(default=0.1, gt=0, le=1)
    """See `milestones`."""
    batch: int | None = Field(default=None, ge=1)
    """Training rows of a gradient; all if left out."""


class HyperGradientSpec(Section):
    """Hyper-gradient push."""

    rounds: int = Field(default=100, ge=1, le=1_000_000)
    """M: terms of the Neumann series."""
    push_steps: int = Field(default=10, ge=1, le=10_000)
    """S: Push-Sum steps per round."""
    step_size: float = Field(default=0.5, gt=0)
    """η; must stay below 2/λ_max of the mean Hessian."""
    form: Literal["reinit", "track"] = "track"
    """Restart Push-Sum at every round (the paper), or carry it on (better for few push steps)."""
    batch: int | None = Field(default=None, ge=1)
    """Training rows of a product; all if left out."""


class OuterSpec(Section):
    """Each party's steps on its own λ."""

    steps: int = Field(default=1, ge=1, le=1_000_000)
    """Outer iterations, each with a solved inner problem and a hyper-gradient; influence takes 1."""
    optimiser: Literal["gradient", "adam"] = "gradient"
    """Plain steps, or Adam (the paper's choice for personalisation)."""
    step_size: float = Field(default=0.1, gt=0)
    """Length of a step against the hyper-gradient of the sum of all parties' costs; of Adam, its learning rate."""


class HgpSpec(AlgorithmSettings):
    """Decentralised bilevel learning: rows, labels, λ and hyper-gradients are not sent, models go to neighbours."""

    layout: ClassVar[Layout] = "horizontal"
    validates: ClassVar[Literal["split", "always", "never"]] = "always"
    sends_clear_values: ClassVar[bool] = True

    @property
    def averages_figures(self) -> bool:
        """Every task has classes."""
        return True

    algorithm: Literal["hgp"]
    """This algorithm."""
    task: Task
    """What to learn."""
    network: NetworkSpec = NetworkSpec()
    """Who sends to whom."""
    inner: InnerSpec = InnerSpec()
    """The inner problem."""
    hyper: HyperGradientSpec = HyperGradientSpec()
    """Its hyper-gradient."""
    outer: OuterSpec = OuterSpec()
    """What is done with it."""
    delivery: Literal["synchronous", "robust"] = "synchronous"
    """Trust the links, or send running totals again until they are there: exact over links that lose messages."""
    patience_seconds: float = Field(default=0.2, gt=0, le=3600)
    """Robust: a party that has got nowhere for so long sends again what its neighbours may have missed."""
    stretch: int = Field(default=1000, ge=1, le=100_000)
    """Most steps that the parties take among themselves between two messages of the coordinator."""

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if self.steps_per_iteration > MOST_STEPS:
            raise ValueError(f"an iteration of {self.steps_per_iteration} messages; at most {MOST_STEPS} are taken")
        if isinstance(self.task, InfluenceSpec) and self.outer.steps != 1:
            raise ValueError("the influence of rows is one hyper-gradient: leave outer.steps at 1")
        if self.delivery == "robust" and self.has_hyper and self.hyper.form == "reinit":
            raise ValueError("robust delivery needs `form: track`, whose weights it can check")
        return self

    def check(self, privacy: ProtectionSpec, parties: list[str]) -> None:  # noqa: ARG002 (the coordinator sees secure sums of measures alone.)
        """Refuse a network that these parties cannot make."""
        self.network.check(parties)

    @property
    def run_length(self) -> int:
        """Iterations of the whole run."""
        return self.outer.steps

    @property
    def has_hyper(self) -> bool:
        """Whether hyper-gradients are computed: the baselines of personalisation have none."""
        return not (isinstance(self.task, PersonalisationSpec) and self.task.method in ("sgp", "local"))

    @property
    def inner_steps(self) -> int:
        """Push-Sum steps of an inner problem."""
        return self.inner.steps * self.inner.push_steps

    @property
    def hyper_steps(self) -> int:
        """Push-Sum steps of a hyper-gradient."""
        return self.hyper.rounds * self.hyper.push_steps if self.has_hyper else 0

    @property
    def steps_per_iteration(self) -> int:
        """Steps of the network's schedule in one outer iteration."""
        return self.inner_steps + self.hyper_steps

    def first_step(self, k: int, phase: Any) -> int:
        """Where a phase of outer iteration k begins in the network's schedule."""
        return k * self.steps_per_iteration + (self.inner_steps if phase == "hyper_gradient" else 0)
