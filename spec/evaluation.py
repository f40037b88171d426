"""What a run measures on held-out rows beside its usual figures."""

from pydantic import Field, field_validator

from parley.spec.section import Section


class EvaluationSpec(Section):
    """How held-out rows are judged: threshold and resamples where the coordinator holds their labels."""

    threshold: float = Field(default=0.5, ge=0.01, le=0.99)
    """Of two classes: a row is taken for the second one above this probability, in hundredths. The confusion matrix is
    at the nearest cut that leaves enough rows on each side (`test threshold` says which)."""
    resamples: int = Field(default=0, ge=0, le=10_000)
    """Bootstrap resamples, for 95 % intervals of the figures (`test auc/low`, `test auc/high`); 0 for none."""

    averages: bool = False
    """Where parties have labels of their own (fedbio, hgp): the parties' mean of AUC, average precision, KS, Brier
    score, calibration error and log loss (`test mean auc`), each party's over its own test rows, or its validation
    rows where it has none of them."""

    @field_validator("threshold")
    @classmethod
    def _in_hundredths(cls, value: float) -> float:
        if abs(value * 100 - round(value * 100)) > 1e-9:
            raise ValueError(f"thresholds are in hundredths, so that no two of them lie around one row: not {value:g}")
        return round(value, 2)

    @field_validator("resamples")
    @classmethod
    def _enough(cls, value: int) -> int:
        if 0 < value < 100:
            raise ValueError("intervals of 95 % need at least 100 resamples; 0 makes none")
        return value
