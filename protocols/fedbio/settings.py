"""Settings of the FedBiO family (horizontal federated bilevel learning)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from parley.protocols.decentralised.settings import class_names
from parley.spec.algorithms import AlgorithmSettings, Layout
from parley.spec.protection import ProtectionSpec
from parley.spec.section import Section, Widths

TableName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]


def _check_rows(classes: tuple[str, ...], name: str, rows: str | float) -> None:
    """Refuse a class that is listed twice, and a share of rows (field `name`) that is none or all."""
    if len(set(classes)) != len(classes):
        raise ValueError("`classes` lists one twice")
    if isinstance(rows, float) and not 0 < rows < 1:
        raise ValueError(f"{name} is the name of a table, or a share between 0 and 1 such as 0.05")


class CleaningSpec(Section):
    """Find mislabelled rows: each party weighs its own training rows by rows whose labels were checked."""

    kind: Literal["data_cleaning"]
    """This task."""
    classes: tuple[str, ...] = Field(min_length=2, max_length=10_000)
    """Every class as the label columns write it; a party need not have rows of each."""
    checked: Annotated[TableName | float, Field(union_mode="left_to_right")]
    """Rows whose labels are right: a table of each party, or a share of its `table` such as 0.05, drawn by the seed."""
    test: TableName | None = None
    """A table of each party to judge the model on; only the parties' sum of mistakes is seen."""
    truth: TableName | None = None
    """A table of each party with the right labels, where they are known: tells how well wrong ones are found."""
    hidden: Widths = Field(default=(), max_length=8)
    """Widths of hidden layers; none for softmax regression."""
    regularisation: float = Field(default=1e-3, gt=0, le=1e3)
    """L2 coefficient of the model."""

    _names = field_validator("classes", mode="before")(class_names)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        _check_rows(self.classes, "checked", self.checked)
        if any(width < 1 or width > 65536 for width in self.hidden):
            raise ValueError("hidden widths lie between 1 and 65536")
        return self

    @property
    def tables(self) -> tuple[str, ...]:
        """Tables that it reads besides the run's."""
        checked = self.checked if isinstance(self.checked, str) else None
        return tuple(name for name in (checked, self.test, self.truth) if name is not None)


class HyperParametersSpec(Section):
    """Tune the L2 coefficients of one softmax regression: both the model and its coefficients are shared by all."""

    kind: Literal["hyper_parameters"]
    """This task."""
    classes: tuple[str, ...] = Field(min_length=2, max_length=10_000)
    """Every class as the label columns write it; a party need not have rows of each."""
    validation: Annotated[TableName | float, Field(union_mode="left_to_right")] = 0.25
    """Rows that judge the coefficients: a table of each party, or a share of its `table`, drawn by the seed."""
    test: TableName | None = None
    """A table of each party to judge the model on; only the parties' sum of mistakes is seen."""
    coefficients: Literal["columns", "classes", "one"] = "columns"
    """Whether each column has a coefficient, or each class, or the model has a single one."""
    initial: float = Field(default=0.01, gt=0, le=1e3)
    """The coefficients that the run begins with."""
    lowest: float = Field(default=1e-4, gt=0, le=1e3)
    """Added to every coefficient: the lower problem stays strongly convex. Biases have this one alone."""

    highest: float = Field(default=1.0, gt=0, le=1e3)
    """No coefficient grows beyond this and `lowest`; steps of the model stay below 1 / `highest`."""

    _names = field_validator("classes", mode="before")(class_names)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        _check_rows(self.classes, "validation", self.validation)
        if self.initial >= self.highest:
            raise ValueError(f"initial is {self.initial:g}: coefficients begin below highest, {self.highest:g}")
        return self

    @property
    def tables(self) -> tuple[str, ...]:
        """Tables that it reads besides the run's."""
        validation = self.validation if isinstance(self.validation, str) else None
        return tuple(name for name in (validation, self.test) if name is not None)


class RepresentationSpec(Section):
    """Learn a representation of images on which new few-shot tasks are quickly learned (N-way K-shot)."""

    kind: Literal["hyper_representation"]
    """This task."""
    ways: int = Field(default=5, ge=2, le=1000)
    """Classes of a task, N."""
    shots: int = Field(default=1, ge=1, le=1000)
    """Images of each class to learn from, K."""
    queries: int = Field(default=15, ge=1, le=1000)
    """Images of each class to judge by."""
    tasks: int = Field(default=16, ge=1, le=10_000)
    """Tasks that each party draws from its own images."""
    rotate: bool = True
    """Turn each class of a task by a random multiple of 90°."""
    ink: float = Field(default=255.0, gt=0)
    """The table's value of a fully inked pixel; an image is a row of side × side columns."""
    filters: int = Field(default=16, ge=1, le=1024)
    """Channels of each convolution (the paper's networks have 64)."""
    layers: int = Field(default=4, ge=1, le=8)
    """Convolutions of stride 2."""
    regularisation: float = Field(default=1e-3, gt=0, le=1e3)
    """L2 coefficient of the heads."""

    @property
    def tables(self) -> tuple[str, ...]:
        """Tables that it reads besides the run's."""
        return ()


Task = Annotated[CleaningSpec | HyperParametersSpec | RepresentationSpec, Field(discriminator="kind")]


class RecordPrivacySpec(Section):
    """A bound for each record (row with its label): clipped contributions, and noise inside the secure sums."""

    epsilon: float = Field(default=8.0, gt=0, le=16)
    """ε that the whole run may cost one record; a party whose records would cost more refuses it."""
    delta: float = Field(default=1e-6, gt=0, lt=0.1)
    """δ that belongs to it."""
    clip: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """C: largest norm of what a record adds to a step, before the division by `batch`."""
    noise: float = Field(default=4.0, gt=0, allow_inf_nan=False)
    """Noise of the honest parties together, in units of what replacing a record moves (2C / batch)."""
    honest: int = Field(default=2, ge=1, le=1024)
    """How many parties, each one itself among them, are trusted not to give their noise away; their noise suffices."""


@dataclass(frozen=True)
class Steps:
    """Step sizes with every default filled in."""

    eta: float
    gamma: float
    tau: float
    delta: float
    offset: float | None
    momentum: float


_STEPS = {
    # The paper's constants, appendix B.1; FedBiO's are ours.
    ("data_cleaning", True): Steps(200.0, 1.0, 0.01, 30.0, 10000.0, 0.2),
    ("data_cleaning", False): Steps(1000.0, 0.5, 0.5, 1.0, None, 1.0),
    ("hyper_parameters", True): Steps(10.0, 0.5, 0.5, 1.0, None, 0.5),
    ("hyper_parameters", False): Steps(10.0, 0.5, 0.5, 1.0, None, 1.0),
    ("hyper_representation", True): Steps(0.1, 1.0, 1.0, 1.0, None, 0.5),
    ("hyper_representation", False): Steps(0.1, 1.0, 1.0, 1.0, None, 1.0),
}

WARM_TENTHS = 9
"""Of ten rounds of data cleaning, so many are warm."""


class FedbioSpec(AlgorithmSettings):
    """Horizontal federated bilevel learning: every party has rows and labels of its own, only averages are seen."""

    layout: ClassVar[Layout] = "horizontal"
    validates: ClassVar[Literal["split", "always", "never"]] = "always"
    goes_on_without_parties: ClassVar[bool] = True

    @property
    def averages_figures(self) -> bool:
        """Not of few-shot tasks, which have classes of their own, nor where sums are noised."""
        return self.task.kind != "hyper_representation" and self.record_privacy is None

    algorithm: Literal["fedbio"]
    """This algorithm."""
    task: Task
    """What to learn."""
    accelerated: bool | None = None
    """FedBiOAcc's momenta, two phases per round, or FedBiO's one; if left out, only hyper_representation has none."""
    rounds: int = Field(default=300, ge=1, le=10_000_000)
    """Averages over the parties."""
    warm_rounds: int | None = Field(default=None, ge=0, le=10_000_000)
    """Of `rounds`, those at the start that fit the model to checked rows and to labels of which an unknown share is
    wrong; the weights then start from what it says of each label. If left out, nine tenths of the rounds of
    data_cleaning without record_privacy, else none; 0 gives the paper's algorithm."""
    local_steps: int = Field(default=5, ge=1, le=10_000)
    """Steps that each party takes between two averages, I."""
    parties_per_round: int | None = Field(default=None, ge=1, le=1024)
    """How many parties, drawn by the seed, take part in a round; all if left out."""
    eta: float | None = Field(default=None, gt=0)
    """η, step of the weights (200, or 1000 without momenta), of coefficients (10) or of the representation (0.1)."""
    gamma: float | None = Field(default=None, gt=0)
    """γ, step of the model (1; 0.5 for hyper_parameters, and for data_cleaning without momenta)."""
    tau: float | None = Field(default=None, gt=0)
    """τ, step of u (0.01; 0.5 for hyper_parameters and without momenta), or scale of the Neumann series (1)."""
    delta: float | None = Field(default=None, gt=0)
    """δ of α_t = δ/(u₀+t)^{1/3}, or the constant α where `offset` is null."""
    offset: float | None = Field(default=None, gt=0)
    """u₀ of α_t; with `delta` given, null keeps α at δ."""
    momentum: float | None = Field(default=None, gt=0)
    """c of all three momenta; c·α² must not pass 1."""
    radius: float = Field(default=100.0, gt=0)
    """Largest norm of u; must exceed that of the parties' own solutions."""
    neumann_terms: int = Field(default=5, ge=0, le=10_000)
    """Hessian products Q of a hyper-gradient (hyper_representation)."""
    batch: int = Field(default=64, ge=1)
    """Training rows (or tasks) of a step."""
    checked_batch: int = Field(default=64, ge=1)
    """Checked or validation rows (or tasks) of a step."""
    record_privacy: RecordPrivacySpec | None = None
    """A bound for each record, where parties take one step of data_cleaning between averages; none if left out."""

    def check(self, privacy: ProtectionSpec, parties: list[str]) -> None:
        """Refuse a protection that this algorithm cannot give."""
        if self.record_privacy is not None:
            self._check_record_privacy(self.record_privacy, privacy, parties)
        if self.warm_rounds and self.task.kind != "data_cleaning":
            raise ValueError("warm_rounds are for `task: {kind: data_cleaning}`: leave them out")
        if self.warm > self.rounds:
            raise ValueError(f"warm_rounds is {self.warm_rounds}, but the run has {self.rounds} rounds")
        if self.parties_per_round is None:
            return
        if privacy.aggregation.kind == "two_tree":
            raise ValueError("two_tree sums over all parties: sampled parties need `aggregation: {kind: pairwise}`")
        least = max(privacy.aggregation.minimum_parties, 1 if privacy.aggregation.kind == "plain" else 2)
        if self.parties_per_round < least:
            raise ValueError(f"parties_per_round is {self.parties_per_round}, but no sum over fewer than {least} opens")
        if self.parties_per_round > len(parties):
            raise ValueError(f"parties_per_round is {self.parties_per_round}, but the run has {len(parties)} parties")

    def _check_record_privacy(self, records: RecordPrivacySpec, privacy: ProtectionSpec, parties: list[str]) -> None:
        task, aggregation = self.task, privacy.aggregation
        wrong = {
            "`task: {kind: data_cleaning}`": task.kind != "data_cleaning",
            "no `truth`: how well wrong labels are found is no sum over records": getattr(task, "truth", None)
            is not None,
            "`accelerated: false`: momenta would carry a record on from sum to sum": self.has_momenta,
            "no `warm_rounds`: the share of right labels would be read off all rows": self.warm > 0,
            "`local_steps: 1`: a second step would depend on what a record did in the first": self.local_steps != 1,
            "all parties in every sum, each with its noise: no `parties_per_round`": self.parties_per_round is not None,
            "all parties in every sum, each with its noise: no `recovery`": aggregation.recovery,
            "sums that hide addends: not `plain`": aggregation.kind == "plain",
            f"`honest` of at most {len(parties)} parties": records.honest > len(parties),
        }
        needed = [what for what, is_wrong in wrong.items() if is_wrong]
        if needed:
            raise ValueError("record_privacy needs " + "; and ".join(needed))

    @property
    def bounds_records(self) -> bool:
        """With `record_privacy`."""
        return self.record_privacy is not None

    @property
    def warm(self) -> int:
        """`warm_rounds`, with their default filled in."""
        if self.warm_rounds is not None:
            return self.warm_rounds
        learns_from_labels = self.task.kind == "data_cleaning" and self.record_privacy is None
        return WARM_TENTHS * self.rounds // 10 if learns_from_labels else 0

    @property
    def sampled_parties(self) -> int | None:
        """Parties of a round's sum; None for all."""
        return self.parties_per_round

    @property
    def run_length(self) -> int:
        """Iterations of the whole run."""
        return self.rounds

    @property
    def tables(self) -> tuple[str, ...]:
        """Tables that the run reads besides each party's own."""
        return self.task.tables

    @property
    def has_momenta(self) -> bool:
        """`accelerated`, with its default filled in: the representation's is chosen for stability."""
        return self.task.kind != "hyper_representation" if self.accelerated is None else self.accelerated

    @property
    def step_sizes(self) -> Steps:
        """The step sizes, with defaults by task and method filled in."""
        usual = _STEPS[self.task.kind, self.has_momenta]
        return Steps(
            self.eta or usual.eta,
            self.gamma or usual.gamma,
            self.tau or usual.tau,
            self.delta or usual.delta,
            self.offset or (usual.offset if self.delta is None else None),
            self.momentum or usual.momentum,
        )
