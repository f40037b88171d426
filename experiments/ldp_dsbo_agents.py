"""LDP-DSBO in one process, on records that an experiment makes: the product's clock, roles and gates."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parley.coordinator.ldp_dsbo.program import LdpDsboProgram
from parley.party.ldp_dsbo import steps as ldp_dsbo
from parley.party.ldp_dsbo.role import Arrangement, LdpDsboRole, State
from parley.party.peers import Peers
from parley.privacy.ledger import Budget, Charge, Ledger
from parley.privacy.noise import KeyedNoise
from parley.privacy.release import StateGate
from parley.protocols.decentralised.messages import StepRange
from parley.protocols.ldp_dsbo.codec import PROTOCOL
from parley.simulation import Simulation, memory_peers


@dataclass(frozen=True)
class Federation:
    """The agents of a run, with what each of them alone holds."""

    agents: Sequence[ldp_dsbo.Agent]
    settings: Sequence[ldp_dsbo.LdpDsbo]
    keys: Sequence[KeyedNoise]
    """Each agent's own key of its noise."""
    weights: NDArray[np.float64]
    """W, with zero row sums."""
    size: int
    """Length of x, y and z, where the task's bounds do not say it."""


class Uncharged(Ledger):
    """A ledger that writes nothing: an experiment's records are nobody's, and a charge takes longer than a step."""

    def __init__(self) -> None:
        """There is no database."""

    def allotted(self, but: str) -> float:  # noqa: ARG002
        """Nothing is set aside."""
        return 0.0

    def open_run(
        self, run: str, records: int, budget: Budget, data_digest: str | None = None, dataset: str | None = None
    ) -> None:
        """Nobody's budget."""

    def reserve(self, run: str, first_release: int, count: int, charge: Charge) -> Any:
        """Nobody pays."""


def train(
    federation: Federation,
    steps: int,
    *,
    run: str = "simulated",
    watch: Callable[[int, list[ldp_dsbo.AgentState]], None] | None = None,
) -> list[ldp_dsbo.AgentState]:
    """Run `steps` steps and return the agents' states; `watch(t, states)` sees them after step t = 1, 2, …

    `run` names the noise, which is drawn from each agent's key.
    """
    count = len(federation.agents)
    stretch = steps if watch is None else 1
    peers = memory_peers(count)
    roles = [_role(federation, i, steps, run, peers[i], stretch) for i in range(count)]
    program = LdpDsboProgram(count, steps, stretch=stretch)

    def seen(current: StepRange, states: Sequence[State]) -> None:
        if watch is not None and current.phase == "agent_steps":
            watch(current.last, [state.agent for state in states])

    return [state.agent for state in Simulation(PROTOCOL, program, roles).run(watch=seen).states]


def _role(federation: Federation, i: int, steps: int, run: str, peers: Peers, stretch: int) -> LdpDsboRole:
    settings, row = federation.settings[i], federation.weights[i]
    weights = {j: float(w) for j, w in enumerate(row) if j != i and w != 0}
    first = ldp_dsbo.first_state(settings, federation.size)
    plan = None
    if settings.noise_scales is not None:
        plan = ldp_dsbo.privacy_plan(settings, federation.size, float(row[i]))
    agent = federation.agents[i]
    known = Arrangement(agent, agent.upper, first, settings, weights, plan, steps, delta=0.0)
    gate = StateGate(
        Uncharged(),
        federation.keys[i],
        run,
        plan,
        size=max(len(first.x), len(first.y)),
        iterations=steps,
        run_limit=math.inf,  # what a printed experiment costs is reported, not refused
        limit=math.inf,
        neighbours=tuple(f"agent-{j}" for j in weights),
    )
    gate.open()
    return LdpDsboRole(i, known, gate, peers, most_ahead=2 * stretch)
