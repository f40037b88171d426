"""Run n parties of a decentralised algorithm in one process, with bytes at every boundary between roles.

For experiments and for trying a spec before deploying it. Each party's step is the very function that its service
calls; what one party sends is encoded to bytes and decoded for the other, so that no array is shared and nothing
that has no codec can cross.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parley.numerics.bilevel_costs import BilevelCost
from parley.numerics.networks import (
    NetworkPlan,
    check_strongly_connected,
    links,
    metropolis_weights,
    out_neighbours,
)
from parley.numerics.push_sum import Mass, estimate
from parley.party.hgp import steps as hgp
from parley.party.ldp_dsbo import steps as ldp_dsbo
from parley.privacy.noise import KeyedNoise

Vector = NDArray[np.floating]
_HEADER = struct.Struct("<4q")


class CorruptMessage(ValueError):
    """Bytes that are no message of the algorithm."""


@dataclass
class Traffic:
    """What crossed between parties, over a whole run."""

    messages: int = 0
    payload_bytes: int = 0


@dataclass(frozen=True)
class Mixing:
    """A network and how its members share."""

    plan: NetworkPlan
    doubly_stochastic: bool = False
    """Metropolis weights (undirected networks only) instead of equal portions."""
    window: int = 50
    """B: any window of this many steps must be strongly connected; checked at the start of a run."""


def encode_portion(mass: Mass) -> bytes:
    """Return ω and z as little-endian float64."""
    return struct.pack("<d", mass.weight) + np.asarray(mass.z, dtype="<f8").tobytes()


def decode_portion(data: bytes) -> Mass:
    """Return the portion that `encode_portion` wrote."""
    if len(data) < 8 or len(data) % 8:
        raise CorruptMessage(f"A Push-Sum portion of {len(data)} bytes is no list of float64.")
    numbers = np.frombuffer(data, dtype="<f8")
    return Mass(numbers[1:], float(numbers[0]))


def train(
    costs: Sequence[BilevelCost],
    mixing: Mixing,
    settings: hgp.Training,
    start: Sequence[Vector],
    hypers: Sequence[Vector],
    *,
    first_step: int = 0,
    traffic: Traffic | None = None,
) -> list[Vector]:
    """Solve the inner problem by SGP and return each party's model."""
    states = [hgp.begin_training(x) for x in start]

    def step(member: int, incoming: Mapping[int, Mass], receivers: tuple[int, ...], shares: Shares) -> Portions:
        states[member], portions = hgp.train_step(
            costs[member], settings, hypers[member], member, states[member], incoming, receivers, shares
        )
        return portions

    _exchange(step, mixing, settings.steps, first_step, traffic)
    return [estimate(state.mass).astype(hyper.dtype, copy=False) for state, hyper in zip(states, hypers, strict=True)]


def hyper_gradients(
    costs: Sequence[BilevelCost],
    mixing: Mixing,
    settings: hgp.Hgp,
    points: Sequence[Vector],
    hypers: Sequence[Vector],
    *,
    first_step: int = 0,
    traffic: Traffic | None = None,
    watch: Callable[[int, list[Vector]], None] | None = None,
) -> list[Vector]:
    """Return each party's v_i ≈ d/dλ_i Σ_k f_k; `watch(m, v)` sees the parties' own v after each round m."""
    states = [hgp.begin_hyper_gradient(*args) for args in zip(costs, points, hypers, strict=True)]

    def step(member: int, incoming: Mapping[int, Mass], receivers: tuple[int, ...], shares: Shares) -> Portions:
        states[member], portions = hgp.hyper_gradient_step(
            costs[member],
            settings,
            points[member],
            hypers[member],
            member,
            states[member],
            incoming,
            receivers,
            shares,
        )
        return portions

    def after(step_index: int) -> None:
        if watch is not None and step_index > 0 and step_index % settings.push_steps == 0:
            watch(step_index // settings.push_steps, [state.v for state in states])

    _exchange(step, mixing, settings.steps, first_step, traffic, after)
    return [state.v for state in states]


Shares = Mapping[int, float] | None
Portions = Mapping[int, Mass]
_Step = Callable[[int, Mapping[int, Mass], tuple[int, ...], Shares], Portions]


def _exchange(
    step: _Step,
    mixing: Mixing,
    steps: int,
    first_step: int,
    traffic: Traffic | None,
    after: Callable[[int], None] | None = None,
) -> None:
    """Call every member's step `steps` + 1 times; what a call sends arrives at the next call of its receiver."""
    plan = mixing.plan
    check_strongly_connected(plan, window=mixing.window, steps=mixing.window)
    inboxes: list[dict[int, bytes]] = [{} for _ in range(plan.size)]
    for index in range(steps + 1):
        matrix = links(plan, first_step + index)
        weights = metropolis_weights(matrix) if mixing.doubly_stochastic else None
        outboxes: list[dict[int, bytes]] = [{} for _ in range(plan.size)]
        for member in range(plan.size):
            receivers = out_neighbours(matrix, member)
            shares = None if weights is None else {j: float(weights[j, member]) for j in receivers}
            incoming = {sender: decode_portion(data) for sender, data in inboxes[member].items()}
            encoded: dict[float, bytes] = {}  # equal portions of one member are encoded once
            for receiver, portion in step(member, incoming, receivers, shares).items():
                if portion.weight not in encoded:
                    encoded[portion.weight] = encode_portion(portion)
                data = encoded[portion.weight]
                outboxes[receiver][member] = data
                if traffic is not None:
                    traffic.messages += 1
                    traffic.payload_bytes += len(data)
        inboxes = outboxes
        if after is not None:
            after(index)


@dataclass(frozen=True)
class Federation:
    """The agents of an LDP-DSBO run, with what each of them alone holds."""

    agents: Sequence[ldp_dsbo.Agent]
    settings: Sequence[ldp_dsbo.LdpDsbo]
    keys: Sequence[KeyedNoise]
    """Each agent's own key of its noise."""
    weights: NDArray[np.float64]
    """W, with zero row sums."""
    size: int
    """Length of x, y and z, where the task's bounds do not say it."""


def run_ldp_dsbo(
    federation: Federation,
    steps: int,
    *,
    run: str = "simulated",
    watch: Callable[[int, list[ldp_dsbo.AgentState]], None] | None = None,
) -> list[ldp_dsbo.AgentState]:
    """Run `steps` steps of LDP-DSBO and return the agents' states; `watch(t, states)` sees each step's start."""
    count = len(federation.agents)
    neighbours = [
        {j: float(federation.weights[i, j]) for j in range(count) if j != i and federation.weights[i, j] != 0}
        for i in range(count)
    ]
    states = [ldp_dsbo.first_state(settings, federation.size) for settings in federation.settings]
    for t in range(steps):
        if watch is not None:
            watch(t, states)
        sent = []
        for state, settings, key in zip(states, federation.settings, federation.keys, strict=True):
            draft = ldp_dsbo.draft_state(state)
            if settings.noise_scales is None:
                noised = ldp_dsbo.NoisedState(draft.x, draft.y, draft.z, draft.step)
            else:
                noised = ldp_dsbo.noise_draft(draft, settings.noise_scales, key, run)
            sent.append(encode_noised(noised))
        states = [
            ldp_dsbo.update(
                federation.agents[i],
                federation.settings[i],
                neighbours[i],
                states[i],
                {j: decode_noised(sent[j]) for j in neighbours[i]},
            )
            for i in range(count)
        ]
    return states


def encode_noised(state: ldp_dsbo.NoisedState) -> bytes:
    """Return the step, the lengths of the three noised vectors and the vectors, as little-endian numbers."""
    vectors = (state.noised_x, state.noised_y, state.noised_z)
    content = np.asarray(np.concatenate(vectors), dtype="<f8").tobytes()
    return _HEADER.pack(state.step, *(len(vector) for vector in vectors)) + content


def decode_noised(data: bytes) -> ldp_dsbo.NoisedState:
    """Return the state that `encode_noised` wrote."""
    if len(data) < _HEADER.size:
        raise CorruptMessage(f"A noised state of {len(data)} bytes has no header.")
    step, *lengths = _HEADER.unpack_from(data)
    if min(lengths) < 0 or len(data) != _HEADER.size + 8 * sum(lengths):
        raise CorruptMessage(f"A noised state of {len(data)} bytes does not hold three vectors of {lengths} float64.")
    numbers = np.frombuffer(data, dtype="<f8", offset=_HEADER.size).astype(np.float64)
    x, y, z = np.split(numbers, np.cumsum(lengths)[:-1])
    return ldp_dsbo.NoisedState(x, y, z, step)
