"""What an attack found, against what the settings guarantee."""

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["within", "stopped", "open", "beyond"]
MEANINGS: dict[Verdict, str] = {
    "within": "the attack recovers no more than the guarantee allows, or than chance does where nothing is guaranteed",
    "stopped": "the attack needs something that is refused",
    "open": "the attack succeeds, and nothing was guaranteed against it",
    "beyond": "the attack succeeds beyond a guarantee: do not run this, and report it",
}


@dataclass(frozen=True)
class Finding:
    """One attack on one subject."""

    attack: str
    adversary: str
    """Who can mount it: a party, the coordinator, a client, a neighbour."""
    recovered: str
    """What it recovered, in a sentence."""
    value: float | None = None
    """How much, as a share between 0 and 1; None where it was stopped before."""
    bound: float | None = None
    """What the settings allow at most; None where they guarantee nothing."""
    guarantee: str = "none"
    """Where the bound comes from, or what stops the attack."""
    verdict: Verdict = "within"
    remedy: str = ""
    """What to change."""

    @property
    def margin(self) -> float | None:
        """How far below the bound the attack stayed; negative beyond it."""
        return None if self.value is None or self.bound is None else self.bound - self.value

    @property
    def shares(self) -> dict[str, float]:
        """What was recovered, what may be, and the excess; a bound is 0 where the attack was stopped, 1 without one."""
        stopped = self.verdict == "stopped"
        value = self.value if self.value is not None else 0.0
        bound = self.bound if self.bound is not None else 0.0 if stopped else 1.0
        return {"recovered": value, "bound": bound, "excess over bound": value - bound}


def bounded(
    attack: str, adversary: str, recovered: str, value: float, bound: float, guarantee: str, remedy: str = ""
) -> Finding:
    """An attack on something that is guaranteed."""
    verdict: Verdict = "within" if value <= bound else "beyond"
    return Finding(attack, adversary, recovered, value, bound, guarantee, verdict, remedy)


def unbounded(
    attack: str, adversary: str, recovered: str, value: float, chance: float, remedy: str, guarantee: str = "none"
) -> Finding:
    """An attack on something that nothing guarantees: it succeeds if it beats chance."""
    verdict: Verdict = "open" if value > chance else "within"
    return Finding(attack, adversary, recovered, value, None, guarantee, verdict, remedy if verdict == "open" else "")


def stopped(attack: str, adversary: str, recovered: str, by: str) -> Finding:
    """An attack that was refused what it needs."""
    return Finding(attack, adversary, recovered, guarantee=by, verdict="stopped")
