"""Settings of a run that explores."""

from typing import ClassVar, Literal

from pydantic import Field

from parley.spec.algorithms import AlgorithmSettings, Layout
from parley.spec.protection import ProtectionSpec


class ExploreSpec(AlgorithmSettings):
    """Figures of every party's columns, over the rows of `split`: nothing is trained."""

    layout: ClassVar[Layout] = "vertical"
    noises_counts: ClassVar[bool] = True
    algorithm: Literal["explore"]
    """This algorithm."""
    bins: int = Field(default=10, ge=2, le=100)
    """Most bins of a column, of about as many rows each; a column with as many values or fewer has one for each."""
    smallest_cell: int = Field(default=20, ge=2)
    """No figure is over fewer rows: such bins are joined with a neighbour. Owners' `minimum_batch` is a floor."""
    against_label: bool = False
    """Weight of evidence and information value against a label of two classes, which goes to the parties for that."""

    correlations: bool = False
    """Correlations between columns, and variance inflation given all others, of those that their owners' `correlations`
    name. It takes three parties; two of them that put together what they get would know columns of a third."""

    def check(self, privacy: ProtectionSpec, parties: list[str]) -> None:
        """Refuse a protection that this algorithm cannot give."""
        if self.correlations and len(parties) < 3:
            raise ValueError(
                "correlations take a third party that helps the two whose columns are multiplied: add one, or leave "
                "`correlations` out"
            )
        if self.correlations and privacy.features.kind == "counts":
            raise ValueError(
                "`features: {kind: counts}` puts no noise on correlations: leave `correlations` out, or take "
                "`kind: once`"
            )
        _, fraction, limit = privacy.aggregation.resolved
        if self.correlations and (fraction < 8 or limit < 256):
            raise ValueError("correlations need `limit` 256 and 8 `fraction_bits` or more: leave `ring_bits: 16` out")
        if self.against_label and privacy.labels.mechanism == "per_step":
            raise ValueError(
                "labels are released once in a run that explores: write `labels: {mechanism: once}`, or "
                "`against_label: false`"
            )
        if self.against_label:
            privacy.labels.check_kind(real=False)

    @property
    def run_length(self) -> int:
        """Everything is found at once."""
        return 1
