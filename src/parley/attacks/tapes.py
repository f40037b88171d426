"""What the coordinator sees of a run: every round and the sum that it opened, recorded in a rehearsal."""

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parley.attacks.stand_in import StandIn
from parley.simulation.runs import holdings_of, models_of, simulation_of

Array = NDArray[np.float64]


@dataclass
class Tape:
    """Sums in the order in which they were opened."""

    rounds: list[tuple[Any, Array]] = field(default_factory=list)
    """Each round, and its sum."""
    models: list[dict[str, Array]] = field(default_factory=list)
    """What every party saved at the end."""

    def asked(self, kind: str) -> list[tuple[Any, Array]]:
        """Rounds whose ask is of this class, or whose phase has this name."""
        return [(each, total) for each, total in self.rounds if kind in (_kind(each), getattr(each, "phase", None))]


def rehearse(subject: StandIn, *, run_id: str = "rehearsal", noise_key: bytes | None = None) -> Tape:
    """Run a stand-in in one process, and record what its coordinator sees."""
    tape = Tape()
    simulation = simulation_of(
        subject.spec,
        holdings_of(subject.spec, subject.stores),
        subject.labels.load,
        run_id=run_id,
        noise_key=noise_key,
    )
    _tap(simulation.program, tape)
    outcome = simulation.run()
    tape.models = [
        {name: np.asarray(tensor, dtype=np.float64) for name, tensor in model.items()}
        for model in models_of(simulation, outcome)
    ]
    return tape


def _tap(program: Any, tape: Tape) -> None:
    original = program.rounds

    def rounds(done: int, observe: Any) -> Generator[Any, Any, None]:
        inner = original(done, observe)
        current = next(inner)
        while True:
            total = yield current
            if total is not None:
                tape.rounds.append((current, np.asarray(getattr(total, "total", total), dtype=np.float64)))
            try:
                current = inner.send(total)
            except StopIteration:
                return

    program.rounds = rounds


def _kind(current: Any) -> str:
    return type(getattr(current, "ask", current)).__name__
