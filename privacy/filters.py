"""When a data set's budget is spent: composition that holds however later releases are chosen.

A ledger that outlives runs sees releases that people choose after they saw earlier ones. Taking the best Rényi order
after the fact is then not covered by the theorem; one order that is fixed beforehand is (a privacy filter: Feldman and
Zrnic, Individual privacy accounting via a Rényi filter, 2021), and so is the sum of pure ε. The filter takes the better
of the two. A loss above ε is impossible while pure ε has room, and has probability below δ while the fixed order has,
so the two may be used together at the same δ.

Gaussian noise alone needs neither: its divergences are α·Σ μ²/2 at every order at once, so a bound on the sum that is
fixed beforehand is a filter at all of them, and ε may be read off it at the best one; or exactly (gaussian.py).

The order is the one at which half of ε pays for δ, α = 1 + 2·ln(1/δ)/ε: the best for noise that composes like a
Gaussian.
"""

import math

from parley.privacy.accounting import (
    PURE,
    Accountant,
    Event,
    Release,
    all_gaussian,
    distance_of,
    online_epsilon,
    renyi_divergences,
    with_distance,
)


class SingleOrder(Accountant[float]):
    """The Rényi divergence at one order, which adds."""

    name = "rdp filter"

    def __init__(self, order: float) -> None:
        self._order = order

    def nothing(self) -> float:
        """Zero."""
        return 0.0

    def single(self, release: Release) -> float:
        """The divergence of one release."""
        return float(renyi_divergences(release, (self._order,))[0])

    def repeated(self, cost: float, count: int) -> float:
        """count · divergence."""
        return count * cost

    def joined(self, one: float, other: float) -> float:
        """The sum."""
        return one + other

    def epsilon_of(self, cost: float, delta: float) -> float:
        """ε that a loss passes with probability at most δ, by Markov's inequality."""
        if cost == 0:
            return 0.0
        return cost + math.log(1 / delta) / (self._order - 1) if delta else math.inf


def filtered_epsilon(event: Event, epsilon: float, delta: float) -> float:
    """ε that `event` has spent of a budget (ε, δ); the budget is passed when this is above its ε."""
    if delta and all_gaussian(event):
        return online_epsilon(event, delta)
    pure = PURE.epsilon(event)
    if delta == 0 or math.isinf(epsilon):
        return pure
    distant = distance_of(event)
    left = delta / 2 if distant else delta
    found = min(pure, SingleOrder(1 + 2 * math.log(1 / left) / epsilon).epsilon(event, left))
    return with_distance(found, distant, delta - left)
