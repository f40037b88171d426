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

Robust form (`emit`, `absorb`): each edge carries running totals of everything ever pushed along it, and a
sequence number. The receiver takes the difference to the last totals it saw and drops a sequence number that is
not new, so loss, duplication and reordering only delay mass. What members hold plus what is in flight
(`in_flight`) is conserved. Totals are float64: in float32 they lose 2e-3 after 1e4 steps.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


class PushSumError(ValueError):
    """A Push-Sum message or state cannot be used."""


class MassMismatch(PushSumError):
    """A message carries a vector of another size, or a number that is not finite."""


class Misdelivered(PushSumError):
    """A message reached a member that it was not addressed to."""


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
        if portion.z.shape != z.shape:
            raise MassMismatch(f"A Push-Sum vector of shape {portion.z.shape} came where {z.shape} was expected.")
        z += portion.z
        weight += portion.weight
    total = Mass(z, weight)
    _check(total, kept.z.shape)  # a NaN or infinity in any portion is still there in the sum
    return total


@dataclass(frozen=True)
class RunningTotal:
    """Everything that was ever pushed along one edge, up to `sequence`."""

    mass: Mass
    sequence: int


@dataclass(frozen=True)
class TotalMessage:
    """The running total of the edge sender → receiver."""

    sender: int
    receiver: int
    total: RunningTotal


def _empty() -> Mapping[int, RunningTotal]:
    return MappingProxyType({})


@dataclass(frozen=True)
class RobustState:
    """One member of robust Push-Sum; persist all of it, or nothing."""

    member: int
    held: Mass
    sent: Mapping[int, RunningTotal] = field(default_factory=_empty)
    """Totals by receiver."""
    received: Mapping[int, RunningTotal] = field(default_factory=_empty)
    """Last totals seen, by sender."""


def join(member: int, value: NDArray[np.floating]) -> RobustState:
    """Return the state of a member that starts with `value` and weight 1."""
    return RobustState(member, initial_mass(value))


def emit(state: RobustState, receivers: Iterable[int]) -> tuple[RobustState, tuple[TotalMessage, ...]]:
    """Push equal portions to `receivers`; the messages carry the edges' totals after this push."""
    kept, portions = split(state.held, receivers)
    sent = dict(state.sent)
    for receiver, portion in portions.items():
        before = sent.get(receiver)
        sent[receiver] = (
            RunningTotal(portion, 1) if before is None else RunningTotal(before.mass + portion, before.sequence + 1)
        )
    messages = tuple(TotalMessage(state.member, receiver, sent[receiver]) for receiver in portions)
    return replace(state, held=kept, sent=MappingProxyType(sent)), messages


def absorb(state: RobustState, message: TotalMessage) -> RobustState:
    """Take what is new in `message`; a duplicate or an overtaken message changes nothing."""
    if message.receiver != state.member:
        raise Misdelivered(
            f"Member {state.member} received running totals for member {message.receiver}: check the routes."
        )
    _check(message.total.mass, state.held.z.shape)
    before = state.received.get(message.sender)
    if before is not None and message.total.sequence <= before.sequence:
        return state
    news = message.total.mass if before is None else message.total.mass - before.mass
    received = {**state.received, message.sender: message.total}
    return replace(state, held=state.held + news, received=MappingProxyType(received))


def in_flight(sender: RobustState, receiver: RobustState) -> Mass:
    """Return what the edge sender → receiver holds: pushed and not yet absorbed."""
    nothing = RunningTotal(Mass(np.zeros_like(sender.held.z), 0.0), 0)
    pushed = sender.sent.get(receiver.member, nothing)
    taken = receiver.received.get(sender.member, nothing)
    return pushed.mass - taken.mass


def to_arrays(state: RobustState) -> dict[str, NDArray[np.float64]]:
    """Return the state as named arrays, for a checkpoint; exact, by `from_arrays`."""

    def rows(totals: Mapping[int, RunningTotal]) -> NDArray[np.float64]:
        width = state.held.z.size + 3
        listed = [
            np.concatenate([[edge, total.sequence, total.mass.weight], total.mass.z])
            for edge, total in sorted(totals.items())
        ]
        return np.array(listed, dtype=np.float64).reshape(len(listed), width)

    return {
        "member": np.array([state.member], dtype=np.float64),
        "held": np.concatenate([[state.held.weight], state.held.z]),
        "sent": rows(state.sent),
        "received": rows(state.received),
    }


def from_arrays(arrays: Mapping[str, NDArray[np.float64]]) -> RobustState:
    """Return the state that `to_arrays` wrote."""

    def totals(rows: NDArray[np.float64]) -> Mapping[int, RunningTotal]:
        return MappingProxyType(
            {int(row[0]): RunningTotal(Mass(row[3:].copy(), float(row[2])), int(row[1])) for row in rows}
        )

    held = arrays["held"]
    return RobustState(
        member=int(arrays["member"][0]),
        held=Mass(held[1:].copy(), float(held[0])),
        sent=totals(arrays["sent"]),
        received=totals(arrays["received"]),
    )


def _check(mass: Mass, shape: tuple[int, ...]) -> None:
    if mass.z.shape != shape:
        raise MassMismatch(f"A Push-Sum vector of shape {mass.z.shape} came where {shape} was expected.")
    if not (np.isfinite(mass.weight) and np.isfinite(mass.z).all()):
        raise MassMismatch("A Push-Sum message holds NaN or infinity; it was not absorbed.")
