"""Points of a scorecard: a logistic model on weights of evidence, in the units that people of the trade use.

N. Siddiqi, Credit Risk Scorecards (2006), ch. 6. With the logit η = a + Σ_j β_j WOE_j of the second class, odds of the
first one are e^−η, and score = offset − factor · η: `points` at `odds` to one, `double` points more double the odds.
"""

from dataclasses import dataclass
from math import log


@dataclass(frozen=True)
class Scale:
    """What points mean."""

    points: float = 600.0
    """The score at `odds`."""
    odds: float = 50.0
    """Of the first class against the second."""
    double: float = 20.0
    """Points that double the odds."""

    @property
    def factor(self) -> float:
        """Points for each unit of the logit."""
        return self.double / log(2)

    def of_intercept(self, intercept: float) -> float:
        """Points that every row begins with."""
        return self.points - self.factor * log(self.odds) - self.factor * intercept

    def of_bin(self, coefficient: float, weight: float) -> float:
        """Points of a bin: added up over columns and parties, with those that a row begins with, they are its score."""
        return -self.factor * coefficient * weight + 0.0  # no -0
