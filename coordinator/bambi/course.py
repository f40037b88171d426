"""How a run of BAMBI is going, as the coordinator sees it from noisy labels: how far x may move, and when to warn.

Everything here is made from losses on noisy labels that were paid for, so it may leave, and it is committed with every
checkpoint, so that a run that is taken up again goes the same way.
"""

import json
import math
from dataclasses import asdict, dataclass, replace

from parley.spec.events import RunWarning

RISE = 1.5
"""Above the floor that label noise leaves, the lower loss on new rows may rise by this factor in one step of x."""
SMALLEST_SCALE = 2.0**-6
RECOVERY = 1.25
MEMORY = 0.8
"""Weight of the past in running means."""
SETTLING = 10
"""Steps before a run is judged."""
FELT = 0.2
"""Share of the first loss below which a loss cannot jump: what is left of a small one differs from batch to batch."""
JUMPS = 2.5
"""Steps among the last ten whose loss jumped, beyond which a run oscillates."""


@dataclass(frozen=True)
class Course:
    """What the coordinator remembers between two iterations; losses are above the floor of the noise."""

    steps: int = 0
    """Iterations that were seen."""
    first: float = math.inf
    """The upper loss of the first one."""
    mean: float = math.inf
    """A running mean of it."""
    jumps: float = 0.0
    """A running count of iterations whose loss was far above the mean."""
    begun: float = math.inf
    """The lower loss on new rows, before the solve of the last iteration."""
    solved: float = math.inf
    """The lower objective after it."""
    scale: float = 1.0
    """How much of its step size x may use."""
    warned: tuple[str, ...] = ()
    """Topics that the run was warned of; each is worth one warning."""

    def encoded(self) -> bytes:
        """For a checkpoint."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def decoded(cls, content: bytes) -> "Course":
        """From a checkpoint."""
        numbers = json.loads(content)
        return cls(**{**numbers, "warned": tuple(numbers["warned"])})

    def lower_solved(self, begun: float, solved: float) -> "Course":
        """After a lower solve: x moved too far if y fitted new rows much worse than it did before."""
        followed = begun <= RISE * self.begun
        scale = min(1.0, self.scale * RECOVERY) if followed else max(SMALLEST_SCALE, self.scale / 2)
        return replace(self, begun=begun, solved=solved, scale=scale)

    def seen(self, loss: float) -> "Course":
        """After an iteration whose upper loss was this."""
        if not self.steps:
            return replace(self, steps=1, first=loss, mean=loss)
        jumped = loss > max(RISE * self.mean, FELT * self.first)
        return replace(
            self,
            steps=self.steps + 1,
            mean=MEMORY * self.mean + (1 - MEMORY) * loss,
            jumps=0.9 * self.jumps + jumped,
        )

    def judged(self, remedy: str) -> tuple["Course", RunWarning | None]:
        """A warning that is due now."""
        for topic, due, finding in (
            ("worse than its start", self.mean > self.first, "the loss is above that of the first step"),
            ("oscillates", self.jumps > JUMPS, "the loss jumps up and down from step to step"),
        ):
            if self.steps > SETTLING and due and topic not in self.warned:
                return replace(self, warned=(*self.warned, topic)), RunWarning(topic, finding, remedy)
        return self, None


def above_floor(floor: float, value: float) -> float:
    """A loss less what the noise of labels alone costs; a little more than nothing where the batch was lucky."""
    return max(value - floor, 1e-3)
