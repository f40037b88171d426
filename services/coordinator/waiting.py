"""How long a run waits for a lost party: when to try again, and when to give up.

Two states, and no clock: every time is an argument, in seconds on one monotonic clock.

    Going --lost--> Paused --tried--> Paused (with a longer delay) --resumed--> Going
"""

from dataclasses import dataclass, replace

FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS = 0.5, 10.0
"""Delay before the first new attempt; each later one is twice as long, up to the longest."""


@dataclass(frozen=True)
class Going:
    """The run goes on, or has not begun."""

    patience_seconds: float
    """How long a lost party is waited for."""
    since: float
    """When the run began to go on."""
    paused: "Paused | None" = None
    """The pause before."""

    def lost(self, now: float, checkpoint: int) -> "Paused":
        """A party is lost while `checkpoint` is the newest one.

        A link that breaks as soon as the run goes on is still the same loss: if the run has neither made a checkpoint
        nor lasted for `patience_seconds`, the deadline of the pause before stays.
        """
        before = self.paused
        if before is None or checkpoint > before.checkpoint or now - self.since > self.patience_seconds:
            return Paused(self.patience_seconds, now + self.patience_seconds, checkpoint)
        return Paused(self.patience_seconds, before.deadline, checkpoint)

    def resumed(self, now: float) -> "Going":
        """The run began, without a pause before it."""
        return replace(self, since=now)


@dataclass(frozen=True)
class Paused:
    """The run waits for a lost party."""

    patience_seconds: float
    deadline: float
    """A new attempt after this time is not made."""
    checkpoint: int
    """The newest one when the party was lost."""
    delay_seconds: float = FIRST_WAIT_SECONDS
    """How long to wait before the next attempt."""

    def is_over(self, now: float) -> bool:
        """Whether the next attempt would come too late."""
        return now + self.delay_seconds > self.deadline

    def tried(self) -> "Paused":
        """The delay is over, and another attempt is made."""
        return replace(self, delay_seconds=min(2 * self.delay_seconds, LONGEST_WAIT_SECONDS))

    def resumed(self, now: float) -> Going:
        """The attempt succeeded: the run goes on."""
        return Going(self.patience_seconds, now, self)
