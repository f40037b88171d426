"""Settings of a run that explores."""

from typing import ClassVar, Literal

from pydantic import Field

from parley.spec.algorithms import AlgorithmSettings, Layout
from parley.spec.protection import ProtectionSpec


class ExploreSpec(AlgorithmSettings):
    """Figures of every party's columns, over the rows of `split`: nothing is trained."""

    layout: ClassVar[Layout] = "vertical"
    algorithm: Literal["explore"]
    """This algorithm."""
    bins: int = Field(default=10, ge=2, le=100)
    """Most bins of a column, of about as many rows each; a column with as many values or fewer has one for each."""
    smallest_cell: int = Field(default=20, ge=2)
    """No figure is over fewer rows: such bins are joined with a neighbour. Owners' `minimum_batch` is a floor."""
    against_label: bool = False
    """Weight of evidence and information value against a label of two classes, which goes to the parties for that."""

    def check(self, privacy: ProtectionSpec, parties: list[str]) -> None:  # noqa: ARG002 (any parties will do)
        """Refuse a protection that this algorithm cannot give."""
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
