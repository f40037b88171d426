"""The run specification: one YAML file says who trains what, on which rows, how, and under which protection."""

from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import (
    Field,
    ModelWrapValidatorHandler,
    SerializeAsAny,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticKnownError

from parley.spec.algorithms import AlgorithmSettings, installed
from parley.spec.evaluation import EvaluationSpec
from parley.spec.protection import ProtectionSpec
from parley.spec.section import Section
from parley.spec.stopping import StopSpec

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
RowSelection = Annotated[str | float, Field(union_mode="left_to_right")]
Settings = TypeVar("Settings", bound=Section)
LEAST_CHECKPOINTS = 3
"""Checkpoints that are kept for each run: a newest one that was damaged leaves others."""


def _of_its_algorithm(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    """Read the section as the settings of the algorithm that it names."""
    if not isinstance(value, dict):
        return handler(value)
    if "algorithm" not in value:
        raise PydanticKnownError("union_tag_not_found", {"discriminator": "'algorithm'"})
    tag = value["algorithm"]
    known = installed().get(tag) if isinstance(tag, str) else None
    if known is None:
        expected = ", ".join(repr(name) for name in installed())
        raise PydanticKnownError(
            "union_tag_invalid", {"discriminator": "'algorithm'", "tag": str(tag), "expected_tags": expected}
        )
    return known.settings.model_validate(value)


TrainSpec = Annotated[SerializeAsAny[AlgorithmSettings], WrapValidator(_of_its_algorithm)]
"""Settings of any installed algorithm; `algorithm` in the `train` section chooses."""


class PartySpec(Section):
    """One organisation that takes part. A plain name is short for `{name: ...}`."""

    name: Name
    """The party, as its certificate names it."""
    table: Name | None = None
    """Its table for this run; the run's `table` if left out."""
    columns: tuple[str, ...] | None = None
    """Feature columns to use, where the party's policy leaves the choice free; all of them if left out."""
    view: Name | None = None
    """Or one of the named sets of columns that its policy opens."""
    speed: float = Field(default=1.0, gt=0, le=1)
    """Simulated speed of its own update loop, where the algorithm has one; its answers are not slowed."""

    @model_validator(mode="after")
    def _one_choice(self) -> Self:
        if self.view is not None and self.columns is not None:
            raise ValueError(f"{self.name}: `view` and `columns` both choose columns; write one of them")
        return self


class SplitSpec(Section):
    """Which rows serve the lower problem, the upper problem and the evaluation.

    A share such as 0.2 is drawn from the rows that no range names, by the run's seed. A range such as `"0:50000"`
    names aligned rows. `upper: lower` makes both levels use the same rows.
    """

    lower: RowSelection = 0.6
    """Rows of the lower problem."""
    upper: RowSelection = 0.2
    """Rows of the upper problem, or `lower`."""
    test: RowSelection = 0.2
    """Held-out rows; 0 for none."""
    validation: RowSelection = 0.0
    """Held-out rows that `stop` chooses the best model by, so that figures on `test` stay honest; 0 for none."""

    @field_validator("lower", "upper", "test", "validation")
    @classmethod
    def _readable(cls, value: str | float, info: Any) -> str | float:
        if isinstance(value, str):
            if value == "lower" and info.field_name == "upper":
                return value
            first, separator, last = value.partition(":")
            if separator and first.strip().isdigit() and last.strip().isdigit() and int(first) < int(last):
                return value
            raise ValueError(f'write a share such as 0.2 or a range such as "0:500", not {value!r}')
        if not 0 <= value <= 1 or (value == 0 and info.field_name in ("lower", "upper")):
            raise ValueError("a share of the rows lies between 0 and 1")
        return float(value)

    @model_validator(mode="after")
    def _shares_fit(self) -> Self:
        total = sum(v for v in (self.lower, self.upper, self.test, self.validation) if isinstance(v, float))
        if total > 1 + 1e-9:
            raise ValueError(f"the shares add up to {total:g}; they must not pass 1")
        return self


class RunSpec(Section):
    """A run."""

    elsewhere: ClassVar = dict.fromkeys(
        ("standardise", "preprocess", "path", "format", "delimiter"),
        "how a table is read and scaled is its owner's to say, in the `tables` of the party's configuration",
    )
    name: Name
    """A name for people; runs get an id of their own."""
    seed: int = Field(default=0, ge=0, lt=2**63)
    """Seed of all experiment randomness. Privacy randomness never depends on it."""
    dtype: Literal["float32", "float64"] = "float32"
    """Precision of the model and of the messages."""
    parties: tuple[PartySpec, ...] = Field(min_length=1, max_length=1024)
    """The parties, in the order of their blocks."""
    table: Name = "train"
    """The table that each party reads unless it names its own."""
    labels: Name | None = None
    """The coordinator's label table; the run's `table` if left out."""
    alignment: Name | None = None
    """Rows to train on: those that `parley align` stored under this name; all rows if left out."""
    binned_by: Name | None = None
    """A run that has explored the same columns against the label: each value is replaced by the weight of evidence of
    its bin, as that run has found it at each party."""
    split: SplitSpec = SplitSpec()
    """Which rows serve what."""
    train: TrainSpec
    """The algorithm and its settings."""
    privacy: ProtectionSpec = ProtectionSpec()
    """Protection of what crosses."""
    evaluation: EvaluationSpec = EvaluationSpec()
    """What is measured on held-out rows beside the usual figures."""
    evaluate_every: int = Field(default=10, ge=0)
    """Upper iterations between evaluations on held-out rows; 0 evaluates only at the end."""
    checkpoint_every: int = Field(default=25, ge=0)
    """Upper iterations between checkpoints; 0 writes none. With `stop`, as many as between evaluations if left out."""
    stop: StopSpec | None = None
    """When to end before the last iteration, and which model to keep; every iteration is made if left out."""
    wait_seconds: float = Field(default=300, gt=0, le=86400)
    """How long a lost party is waited for before the run fails."""
    round_seconds: float = Field(default=60, gt=0, le=3600)
    """Deadline of one round; a party that does not answer by then counts as lost."""

    @model_validator(mode="before")
    @classmethod
    def _checkpoint_of_every_evaluation(cls, value: Any) -> Any:
        if not isinstance(value, dict) or value.get("stop") is None or "checkpoint_every" in value:
            return value
        return value | {"checkpoint_every": value.get("evaluate_every", cls.model_fields["evaluate_every"].default)}

    @field_validator("parties", mode="before")
    @classmethod
    def _short_names(cls, value: Any) -> Any:
        return [{"name": v} if isinstance(v, str) else v for v in value] if isinstance(value, (list, tuple)) else value

    @model_validator(mode="wrap")
    @classmethod
    def _with_a_ring(cls, value: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Choose the ring of secure sums, where a spec leaves it to the algorithm."""
        spec = handler(value)
        privacy = spec.privacy
        chosen = privacy.aggregation.chosen(spec.train.sum_bits(spec.dtype), len(spec.parties))
        return spec.model_copy(update={"privacy": privacy.model_copy(update={"aggregation": chosen})})

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        names = [party.name for party in self.parties]
        if len(set(names)) != len(names):
            raise ValueError("each party takes part once; a name in `parties` is listed twice")
        self.privacy.check(parties=len(names))
        if self.privacy.features.kind == "per_sum" and not self.train.noises_sums:
            raise ValueError(
                f"privacy.features per_sum noises what single rows add to sums, and {self.train.algorithm} has no such "
                "sums, or its parties learn from rows in ways that it does not cover: take `kind: once`"
            )
        if self.privacy.features.kind == "counts" and not self.train.noises_counts:
            raise ValueError(
                f"privacy.features counts noises counts of rows, and {self.train.algorithm} makes none: take "
                "`kind: once`"
            )
        self.train.check(self.privacy, names)
        self.train.check_split(self.split.lower, self.split.upper)
        if self.alignment is not None and self.train.layout == "horizontal":
            raise ValueError(
                f"alignment: {self.train.algorithm} joins parties that hold different rows of the same columns; there "
                "is nothing to align, leave it out"
            )
        if self.privacy.aggregation.ring_bits == 16 and not self.train.takes_coarse_sums:
            raise ValueError(
                "privacy.aggregation.ring_bits 16 keeps two or three digits, which these settings of "
                f"{self.train.algorithm} cannot work with: take 32 or 64, or leave it out"
            )
        if self.binned_by is not None and self.train.layout == "horizontal":
            raise ValueError(f"binned_by: {self.train.algorithm}'s parties would each bin the columns in another way")
        self.privacy.aggregation.check_recovery(self.sampled, self.train.goes_on_without_parties)
        self._check_stop()
        return self

    def _check_stop(self) -> None:
        on_split = self.train.validates in ("split", "at_end")
        if self.split.validation != 0 and not on_split:
            raise ValueError(f"split.validation: {self.train.algorithm} measures nothing on such rows; leave it out")
        if self.evaluation.averages and not self.train.averages_figures:
            raise ValueError(
                f"evaluation.averages: not with {self.train.algorithm} and these settings: it is for parties that hold "
                "classes of their own and sum exact figures; leave it out"
            )
        if self.stop is None:
            return
        if self.train.validates == "never":
            raise ValueError(f"stop: {self.train.algorithm} evaluates nothing, so there is no best model; leave it out")
        if self.train.validates == "at_end":
            raise ValueError(
                f"stop: {self.train.algorithm} is solved at once, so there is no earlier model; leave it out"
            )
        if self.train.works_unattended:
            raise ValueError("stop: the parties work on while they are evaluated; use a synchronous schedule")
        if self.stop.metric.startswith("validation ") and on_split and self.split.validation == 0:
            raise ValueError(f"stop: {self.stop.metric!r} is measured on split.validation: give it a share like 0.1")
        if not self.evaluate_every or not self.checkpoint_every or self.evaluate_every % self.checkpoint_every:
            raise ValueError(
                f"stop: every evaluation needs a checkpoint to go back to: evaluate_every ({self.evaluate_every}) must "
                f"be a multiple of checkpoint_every ({self.checkpoint_every}); leave checkpoint_every out"
            )

    @property
    def kept_checkpoints(self) -> int:
        """How many checkpoints everyone keeps: with `stop`, back to the one that may turn out the best."""
        between = self.evaluate_every // self.checkpoint_every if self.stop and self.checkpoint_every else 0
        return LEAST_CHECKPOINTS + (self.stop.patience * between if self.stop else 0)

    @property
    def sampled(self) -> int:
        """How many parties a round's sum is over: all, unless the algorithm draws some."""
        return self.train.sampled_parties or len(self.parties)

    @property
    def label_table(self) -> str:
        """The coordinator's label table."""
        return self.labels or self.table

    def table_of(self, index: int) -> str:
        """The table that party `index` reads."""
        return self.parties[index].table or self.table

    def tables_of(self, index: int) -> tuple[str, ...]:
        """Every table that party `index` reads."""
        return (self.table_of(index), *self.train.tables)

    def index_of(self, party: str) -> int:
        """The block that belongs to `party`."""
        return [entry.name for entry in self.parties].index(party)

    def settings(self, kind: type[Settings]) -> Settings:
        """`train`, which must be of this kind."""
        if not isinstance(self.train, kind):
            raise TypeError(f"the run's algorithm is {self.train.algorithm}; {kind.__name__} was expected")
        return self.train
