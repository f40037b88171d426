"""Settings of LDP-DSBO: decentralised hyper-parameters or meta-learning under local differential privacy."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from parley.protocols.decentralised.settings import NetworkSpec, class_names
from parley.spec.algorithms import AlgorithmSettings, Layout
from parley.spec.protection import ProtectionSpec
from parley.spec.section import Section


class DecaySpec(Section):
    """initial/(t+1)^rate."""

    initial: float = Field(gt=0)
    """Value at the first step."""
    rate: float = Field(ge=0, le=2)
    """How fast it falls."""


class StepSizesSpec(Section):
    """λ_t of the three variables."""

    x: DecaySpec = DecaySpec(initial=0.01, rate=0.95)
    """Of the log-regularisation coefficients."""
    y: DecaySpec = DecaySpec(initial=6.0, rate=0.87)
    """Of the model."""
    z: DecaySpec = DecaySpec(initial=0.5, rate=0.75)
    """Of the Hessian-inverse product."""


class NoiseSpec(Section):
    """Laplace noise of scale (σ/√2)/(t+1)^ς on everything that an agent sends."""

    sigma: float = Field(default=0.25, gt=0)
    """σ."""
    x_rate: float = Field(default=0.8, ge=0)
    """ς of x; below the rate of its step size, or no budget holds."""
    y_rate: float = Field(default=0.76, ge=0)
    """ς of y."""
    z_rate: float = Field(default=0.6, ge=0)
    """ς of z."""


class BoundsSpec(Section):
    """What every agent enforces on its records and variables; ε follows from these."""

    row_l1: float = Field(default=1.0, gt=0)
    """Rows are scaled to at most this L1 norm."""
    row_max: float = Field(default=0.4, gt=0)
    """Features are clipped to ± this."""
    x_low: float = -8.0
    """Log-coefficients are kept above this."""
    x_high: float = Field(default=-5.0, lt=700)
    """And below this."""
    y_max: float = Field(default=30.0, gt=0)
    """Weights of the model are kept within ± this."""
    z_max: float = Field(default=4.0, gt=0)
    """And the Hessian-inverse product within ± this."""
    loss_scale: float = Field(default=1.0, gt=0)
    """The loss is the mean over records times this."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.x_low < self.x_high:
            raise ValueError("x_low must lie below x_high")
        return self


class HyperParametersSpec(Section):
    """Logistic or softmax regression (y), one log-regularisation coefficient per column (x), tuned on other rows."""

    kind: Literal["hyper_parameters"]
    """This task; `bounds` says what is enforced. More than two `classes` make it softmax regression."""
    initial: float = Field(default=0.0, ge=-700, lt=700)
    """Every log-coefficient before the first step; the first update brings it between `x_low` and `x_high`."""


class MetaBoundsSpec(Section):
    """What every agent enforces in meta-learning; ε follows from these."""

    row_l1: float = Field(default=1.0, gt=0)
    """Rows are scaled to at most this L1 norm."""
    row_max: float = Field(default=0.4, gt=0)
    """Features are clipped to ± this."""
    x_max: float = Field(default=10.0, gt=0)
    """Weights of the embedding are kept within ± this."""
    y_max: float = Field(default=4.0, gt=0)
    """And those of the heads within ± this."""
    z_max: float = Field(default=2.0, gt=0)
    """And the Hessian-inverse product within ± this."""
    loss_scale: float = Field(default=1.0, gt=0)
    """The loss is the mean over records times this."""


class MetaLearningSpec(Section):
    """An embedding tanh(Wᵀa) that all tasks share (x), and for each task a linear head on it (y)."""

    kind: Literal["meta_learning"]
    """This task."""
    column: str = "task"
    """The column that names each row's task, 0 … tasks − 1; it is no feature."""
    tasks: int = Field(ge=1, le=10_000)
    """N."""
    embedding: int = Field(default=4, ge=1, le=4096)
    """Length of the embedding."""
    weight_decay: float = Field(default=0.05, gt=0)
    """L2 coefficient of the heads; makes the lower problem strongly convex."""
    initial: float = Field(default=1.0, gt=0)
    """Standard deviation of the first embedding's weights."""
    bounds: MetaBoundsSpec = MetaBoundsSpec()
    """What is enforced."""


AgentTask = Annotated[HyperParametersSpec | MetaLearningSpec, Field(discriminator="kind")]


class LdpDsboSpec(AlgorithmSettings):
    """Agents solve a bilevel problem with their neighbours; what they send carries Laplace noise."""

    layout: ClassVar[Layout] = "horizontal"
    algorithm: Literal["ldp_dsbo"]
    """This algorithm."""
    task: AgentTask = HyperParametersSpec(kind="hyper_parameters")
    """What to learn."""
    classes: tuple[str, ...] = Field(min_length=2, max_length=10_000)
    """All classes as the label columns write them; of two, the second one is the positive one."""
    epsilon: float = Field(gt=0, le=100)
    """ε of one record (see `unit`) that the run may cost any agent; a run that would pass it is refused."""
    delta: float = Field(default=1e-6, gt=0, lt=0.1)
    """δ at which reports convert."""
    unit: Literal["record", "step"] = "record"
    """What is protected: one record, or everything that an agent acquires in one step (the paper's)."""
    network: NetworkSpec = NetworkSpec(kind="ring")
    """Undirected and the same at every step: ring, regular, fully_connected or erdos_renyi."""
    weight: float | None = Field(default=None, gt=0, lt=1)
    """w_ij of neighbours; Metropolis weights if left out."""
    iterations: int = Field(default=100, ge=1, le=1_000_000)
    """T."""
    batch: int = Field(default=50, ge=1)
    """Training and validation records that a step acquires (history) or draws (minibatch)."""
    oracle: Literal["history", "minibatch"] = "history"
    """Average over all records so far, or over this step's alone, whose ε grows with T."""
    step_sizes: StepSizesSpec = StepSizesSpec()
    """λ_t."""
    noise: NoiseSpec | None = NoiseSpec()
    """ν_t; null sends states in the clear, which a party's policy must allow by `epsilon_budget: .inf`."""
    bounds: BoundsSpec = BoundsSpec()
    """What is enforced in `hyper_parameters`; meta-learning has bounds of its own under `task`."""
    stretch: int = Field(default=100, ge=1, le=100_000)
    """Most steps that the parties take among themselves between two messages of the coordinator."""

    _names = field_validator("classes", mode="before")(class_names)

    @model_validator(mode="after")
    def _static(self) -> Self:
        if self.network.kind not in ("ring", "regular", "fully_connected", "erdos_renyi"):
            raise ValueError(
                f"{self.network.kind} networks change or are directed: take ring, regular, "
                "fully_connected or erdos_renyi"
            )
        if isinstance(self.task, MetaLearningSpec) and "bounds" in self.model_fields_set:
            raise ValueError("meta-learning has its bounds under task.bounds: move them there")
        if isinstance(self.task, MetaLearningSpec) and len(self.classes) != 2:
            raise ValueError(f"a task of meta_learning has two classes, not {len(self.classes)}: name two")
        if len(set(self.classes)) != len(self.classes):
            raise ValueError("classes: a class is named twice: name each once")
        return self

    def check(self, privacy: ProtectionSpec, parties: list[str]) -> None:  # noqa: ARG002 (the coordinator gets nothing that was made from data.)
        """Refuse a network that these parties cannot make."""
        self.network.check(parties)

    @property
    def bounds_records(self) -> bool:
        """Every record has an ε."""
        return True

    @property
    def run_length(self) -> int:
        """Iterations of the whole run."""
        return self.iterations
