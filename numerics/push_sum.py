"""Push-Sum: averages over directed networks, in a synchronous and in a loss-proof form.

Bénézit, Blondel, Thiran, Tsitsiklis and Vetterli, "Weighted gossip" (2010); Algorithm 1 of Terashita and Hara,
"Decentralized Hyper-Gradient Computation over Time-Varying Directed Networks" (HGP).

| paper    | code          | shape | held by      | leaves? |
|----------|---------------|-------|--------------|---------|
| z_i      | `Mass.z`      | d     | member i     | as portions or running totals |
| ω_i      | `Mass.weight` | 1     | member i     | as portions or running totals |
| y_i      | `estimate`    | d     | member i     | no      |
| N_i^out  | `receivers`   |       | everyone     | derived from the network plan |

Synchronous form (`split`, `gather`): a step hands each receiver its portion; all portions must arrive. Under loss
the members still agree, but on a wrong value, and agreement cannot show it.

Robust form (`push`, `absorb`, around the same `split` and `gather`): an edge carries the running total of everything
ever pushed along it, and a sequence number. The receiver takes the difference to the last total it saw and drops a
sequence number that is not new, so loss, duplication and reordering only delay mass. What members hold plus what is in
flight is conserved. Totals are float64: in float32 they lose 2e-3 after 1e4 steps.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


class PushSumError(ValueError):
    """A Push-Sum message or state cannot be used."""


class MassMismatch(PushSumError):
    """A message carries a vector of another size, or a number that is not finite."""


class WeightVanished(PushSumError):
    """A member holds no positive weight, so that it has no estimate."""


@dataclass(frozen=True)
class Mass:
    """The pair (z, ω) that Push-Sum moves around."""

    z: Vector
    weight: float

    def __add__(self, other: "Mass") -> "Mass":
        return Mass(self.z + other.z, self.weight + other.weight)

    def __sub__(self, other: "Mass") -> "Mass":
        return Mass(self.z - other.z, self.weight - other.weight)

    def scaled(self, factor: float) -> "Mass":
        """Return both parts times `factor`."""
        return Mass(self.z * factor, self.weight * factor)


def initial_mass(value: NDArray[np.floating]) -> Mass:
    """Return z = value, ω = 1 (Algorithm 1 starts at ω⁽⁰⁾ = 1)."""
    return Mass(np.asarray(value, dtype=np.float64).copy(), 1.0)


def estimate(mass: Mass) -> Vector:
    """Return y = z/ω."""
    if not mass.weight > 0:
        raise WeightVanished(
            f"A Push-Sum weight of {mass.weight} gives no estimate: mass was lost or counted twice on some edge."
        )
    return mass.z / mass.weight


def split(
    mass: Mass, receivers: Iterable[int], shares: Mapping[int, float] | None = None
) -> tuple[Mass, dict[int, Mass]]:
    """Return what the member keeps and each receiver's portion; equal portions unless `shares` says otherwise.

    Member side of a synchronous step. `shares` are the member's own column of a mixing matrix (Metropolis, say).
    """
    targets = tuple(receivers)
    factors = dict.fromkeys(targets, 1.0 / (len(targets) + 1)) if shares is None else shares
    kept = mass.scaled(1.0 - sum(factors[receiver] for receiver in targets))
    portions = {factor: mass.scaled(factor) for factor in {factors[receiver] for receiver in targets}}
    return kept, {receiver: portions[factors[receiver]] for receiver in targets}


def gather(kept: Mass, portions: Iterable[Mass]) -> Mass:
    """Return the member's mass at the end of a synchronous step."""
    z, weight = kept.z.copy(), kept.weight
    for portion in portions:
        _check_shape(portion, z)
        z += portion.z
        weight += portion.weight
    if not (np.isfinite(weight) and np.isfinite(z).all()):  # one in any portion is still there in the sum
        raise MassMismatch("A Push-Sum message holds NaN or infinity; it was not taken.")
    return Mass(z, weight)


@dataclass(frozen=True)
class RunningTotal:
    """Everything that was ever pushed along one edge, up to `sequence`."""

    mass: Mass
    sequence: int


def _empty() -> Mapping[int, RunningTotal]:
    return MappingProxyType({})


@dataclass(frozen=True)
class EdgeTotals:
    """What one member knows of its edges, in the robust form."""

    sent: Mapping[int, RunningTotal] = field(default_factory=_empty)
    """By receiver."""
    received: Mapping[int, RunningTotal] = field(default_factory=_empty)
    """The last totals seen, by sender."""


def push(edges: EdgeTotals, portions: Mapping[int, Mass]) -> tuple[EdgeTotals, dict[int, RunningTotal]]:
    """Sender: return the totals of the edges after these portions, which is what goes along them."""
    pushed: dict[int, RunningTotal] = {}
    for receiver, portion in portions.items():
        before = edges.sent.get(receiver)
        pushed[receiver] = (
            RunningTotal(portion, 1) if before is None else RunningTotal(before.mass + portion, before.sequence + 1)
        )
    return EdgeTotals(MappingProxyType({**edges.sent, **pushed}), edges.received), pushed


def absorb(edges: EdgeTotals, sender: int, total: RunningTotal) -> tuple[EdgeTotals, Mass | None]:
    """Receiver: return what a total brings beyond the last one seen; None if it is a duplicate or was overtaken."""
    before = edges.received.get(sender)
    if before is not None and total.sequence <= before.sequence:
        return edges, None
    news = total.mass
    if before is not None:
        _check_shape(total.mass, before.mass.z)
        news = total.mass - before.mass
    return EdgeTotals(edges.sent, MappingProxyType({**edges.received, sender: total})), news


def _check_shape(mass: Mass, like: Vector) -> None:
    if mass.z.shape != like.shape:
        raise MassMismatch(f"A Push-Sum vector of shape {mass.z.shape} came where {like.shape} was expected.")
