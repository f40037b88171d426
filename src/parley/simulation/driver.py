"""Drive a program and the roles of all parties in one process: rounds, sums, reports, checkpoints.

The program, the roles, the gates and the codecs are those of the services; what is missing is the network, and (unless
asked for) masks. Roles that act with their peers do so in one event loop, whichever runs `Simulation.drive`.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from safetensors.torch import load, save

from parley.coordinator.programs import KeepingProgram, Observer, PausingProgram, Program, Report, WireForm
from parley.coordinator.stopping import EarlyStopping, is_evaluation
from parley.numerics.arrays import Vector
from parley.party.roles import Capabilities, Plan, Role
from parley.privacy.release import OutcomeGate
from parley.protocols.protocol import CrossingProtocol
from parley.protocols.rounds import Round
from parley.simulation.crossing import Crossing
from parley.simulation.sums import ClearSums, Sums
from parley.spec.events import newest
from parley.spec.stopping import StopSpec

Result = TypeVar("Result")
Watch = Callable[[Any, Sequence[Any]], None]
"""Sees each round, and the parties' states after it."""
Until = Callable[[Report], bool]
"""Sees each report, and ends the run early by saying so."""


@dataclass(frozen=True)
class Saved:
    """A checkpoint: the state after k iterations, as every party and the coordinator would write it."""

    k: int
    parties: tuple[bytes, ...]
    program: bytes | None


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    states: list[Any]
    """Of the parties' roles."""
    reports: list[Report]
    """Oldest first."""
    rounds: int
    """Round trips, the last one included."""
    checkpoints: dict[int, Saved]
    """By the iterations that they contain."""
    kept: Report | None = None
    """What was measured of the model that is kept, where that is not the last one."""

    @property
    def metrics(self) -> dict[str, float]:
        """The newest value of each metric, of the model that is kept."""
        found: dict[str, float] = {}
        for report in [*self.reports, *([] if self.kept is None else [self.kept])]:
            found = newest(found, report.metrics)
        return found


class Exchange:
    """Round trips between the coordinator and the parties of one process."""

    def __init__(
        self,
        protocol: CrossingProtocol,
        form: WireForm,
        gate: OutcomeGate,
        roles: Sequence[Role],
        states: Sequence[Any],
        sums: Sums | None = None,
    ) -> None:
        """The sums are in the clear unless `sums` hides them."""
        self._crossing, self._gate, self._sums = Crossing(protocol, form), gate, sums or ClearSums(len(roles))
        self._can = [Capabilities(role) for role in roles]
        self.states = list(states)
        self.rounds = 0

    async def ask(self, current: Round) -> Vector | None:
        """One round: the sum of what its participants contribute; None if they only acknowledge."""
        self.rounds += 1
        number, release = self.rounds, self._gate.release(current)
        chosen: Sequence[int] = range(len(self.states)) if current.participants is None else current.participants
        instructions = self._crossing.instructions(number, release, chosen)
        plans = await self._plans(instructions)
        drafts = {party: plan.draft for party, plan in plans.items() if plan.draft is not None}
        hidden = await self._sums.hide(number, drafts) if drafts else {}
        addends = []
        for party, plan in plans.items():
            self.states[party] = plan.state
            role, answer = self._can[party].role, hidden.get(party, plan.release)
            addends.append(self._crossing.answer(role, number, instructions[party], answer, release))
        summed = [addend for addend in addends if addend is not None]
        return self._sums.open(summed, chosen) if summed else None

    async def stop(self) -> None:
        """Let roles end what they do beside their rounds."""
        for party, can in enumerate(self._can):
            if can.background is not None:
                await can.background.stop(self.states[party])

    async def _plans(self, instructions: Mapping[int, Any]) -> dict[int, Plan]:
        plans: dict[int, Plan] = {}
        acting: dict[int, asyncio.Future[Plan]] = {}
        for party, instruction in instructions.items():
            can, state = self._can[party], self.states[party]
            if can.planning is not None:
                plans[party] = can.planning.plan(state, instruction)
            elif can.peer is not None:
                acting[party] = asyncio.ensure_future(can.peer.act(state, instruction))
        if acting:
            try:
                plans |= dict(zip(acting, await asyncio.gather(*acting.values()), strict=True))
            finally:
                for task in acting.values():
                    task.cancel()  # where one has failed, the others would wait for it
        return plans


@dataclass(frozen=True)
class Simulation:
    """A run of an algorithm in one process. Roles with a thread of their own let it go at the end: they run once."""

    protocol: CrossingProtocol
    program: Program
    roles: Sequence[Role]
    sums: Sums | None = None
    """How sums are hidden; None leaves them in the clear."""
    stop: StopSpec | None = None
    """When the run ends early, and which model it keeps."""

    def begin(self, resume: Saved | None = None) -> list[Any]:
        """Every party's state before the first round, or as a checkpoint has it."""
        if resume is None:
            return [role.begin(None) for role in self.roles]
        return [role.begin(load(content)) for role, content in zip(self.roles, resume.parties, strict=True)]

    def run(self, *, until: Until | None = None, watch: Watch | None = None, resume: Saved | None = None) -> Outcome:
        """Drive every round, from the first one or from a checkpoint."""
        return finished(self.drive(until=until, watch=watch, resume=resume))

    async def drive(
        self, *, until: Until | None = None, watch: Watch | None = None, resume: Saved | None = None
    ) -> Outcome:
        """The same in an event loop that is running."""
        reports: list[Report] = []
        checkpoints: dict[int, Saved] = {}
        exchange = Exchange(self.protocol, self.program, self.program.gate, self.roles, self.begin(resume), self.sums)
        pausing = self.program if isinstance(self.program, PausingProgram) else None
        rounds, seen = self._rounds(resume, reports.append), 0
        stopping = None if self.stop is None else EarlyStopping(self.stop)
        try:
            current: Round = next(rounds)
            while True:
                if pausing is not None:
                    await asyncio.sleep(pausing.pause_seconds(current))
                if stopping is not None and current.keeps == "model" and stopping.earlier_best is not None:
                    self._go_back(exchange, checkpoints[stopping.earlier_best.k])
                    current = self.program.finish
                total = await exchange.ask(current)
                if watch is not None:
                    watch(current, exchange.states)
                if current.keeps == "checkpoint":
                    checkpoints[current.iteration] = self._saved(current.iteration, exchange.states)
                if current.keeps == "model":
                    kept = None if stopping is None else stopping.earlier_best
                    return Outcome(exchange.states, reports, exchange.rounds, checkpoints, kept)
                current = rounds.send(total)
                fresh, seen = reports[seen:], len(reports)
                if until is not None and any(until(report) for report in fresh):
                    current = self.program.finish
                if stopping is not None:
                    for report in filter(is_evaluation, fresh):
                        stopping.note(report)
                    current = self.program.finish if stopping.is_over else current
        finally:
            await exchange.stop()

    def _rounds(self, resume: Saved | None, observe: Observer) -> Generator[Any, Any, None]:
        if resume is None:
            return self.program.rounds(0, observe)
        if isinstance(self.program, KeepingProgram) and resume.program is not None:
            self.program.restore(resume.program)
        return self.program.rounds(resume.k, observe)

    def _go_back(self, exchange: Exchange, saved: Saved) -> None:
        exchange.states = self.begin(saved)
        if isinstance(self.program, KeepingProgram) and saved.program is not None:
            self.program.restore(saved.program)

    def _saved(self, k: int, states: Sequence[Any]) -> Saved:
        parties = tuple(save(role.tensors(state)) for role, state in zip(self.roles, states, strict=True))
        kept = self.program.kept() if isinstance(self.program, KeepingProgram) else None
        return Saved(k, parties, kept)


def finished(steps: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end; also where an event loop is running already, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(steps)
    with ThreadPoolExecutor(max_workers=1) as elsewhere:
        return elsewhere.submit(asyncio.run, steps).result()
