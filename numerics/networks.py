"""Time-varying directed networks: who sends to whom at each step, and with which weights.

A network is named by a `NetworkPlan` (a few numbers and a seed), never listed: every party derives the same
links of every step from the plan, so no one has to announce a topology. Links are a boolean matrix,
`links[i, j]` when i sends to j; every member is its own neighbour, as in Terashita and Hara, "Decentralized
Hyper-Gradient Computation over Time-Varying Directed Networks" (HGP), section 2.1.

Push-Sum splits equally among a member's receivers. Two other weight rules: `metropolis_weights` (doubly stochastic,
undirected networks), `gossip_weights` (rows that sum to zero, LDP-DSBO's Assumption 2.1).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from parley.numerics.streams import stream

Links = NDArray[np.bool_]
Weights = NDArray[np.float64]

_ERDOS_RENYI_ATTEMPTS = 100
_SWAPS_PER_LINK = 10


class NetworkError(ValueError):
    """The network cannot carry a decentralised run."""


class InvalidNetwork(NetworkError):
    """The plan's numbers describe no network."""


class NotStronglyConnected(NetworkError):
    """Nothing that some member sends can ever reach some other one (Assumption 1 of HGP fails)."""


class NotUndirected(NetworkError):
    """A weight rule for undirected links was asked of a directed network."""


class NetworkKind(StrEnum):
    """The families of networks that a plan can name."""

    FULLY_CONNECTED = "fully_connected"
    ERDOS_RENYI = "erdos_renyi"
    RANDOM_UNDIRECTED = "random_undirected"
    RANDOM_DIRECTED = "random_directed"
    RING = "ring"
    REGULAR = "regular"
    EDGE_LIST = "edge_list"


@dataclass(frozen=True)
class NetworkPlan:
    """Everything that a party needs to know the links of any step."""

    kind: NetworkKind
    size: int
    """n, the number of members; at least 1."""
    seed: int = 0
    """Seed of the schedule; public, and the same for all members."""
    probability: tuple[float, float] = (0.4, 0.8)
    """Range from which each pair's link probability ρ is drawn (HGP, section 5.1), for the random kinds."""
    degree: int = 2
    """r of an r-regular network."""
    edges: tuple[tuple[tuple[int, int], ...], ...] = ()
    """The user's directed edges (sender, receiver), one tuple per step, repeated when it ends."""

    def __post_init__(self) -> None:
        low, high = self.probability
        if self.size < 1:
            raise InvalidNetwork(f"A network of {self.size} members: at least 1 is needed.")
        if not 0 <= low <= high <= 1:
            raise InvalidNetwork(f"Link probabilities {self.probability} must satisfy 0 ≤ low ≤ high ≤ 1.")
        if self.kind is NetworkKind.REGULAR and (not 1 <= self.degree < self.size or self.degree * self.size % 2 == 1):
            raise InvalidNetwork(
                f"No {self.degree}-regular network has {self.size} members: choose 1 ≤ degree < size, "
                "and make their product even."
            )
        if self.kind is NetworkKind.EDGE_LIST:
            _check_edges(self.size, self.edges)

    @property
    def static(self) -> bool:
        """Whether the links are the same at every step."""
        if self.kind is NetworkKind.EDGE_LIST:
            return len(self.edges) == 1
        return self.kind not in (NetworkKind.RANDOM_UNDIRECTED, NetworkKind.RANDOM_DIRECTED)


def links(plan: NetworkPlan, step: int) -> Links:
    """Return who sends to whom at `step` (0, 1, …); the diagonal is true."""
    if step < 0:
        raise InvalidNetwork(f"Step {step} of a network: steps count from 0.")
    match plan.kind:
        case NetworkKind.FULLY_CONNECTED:
            return np.ones((plan.size, plan.size), dtype=np.bool_)
        case NetworkKind.RING:
            return _circulant(plan.size, 2)
        case NetworkKind.REGULAR:
            return _regular(plan).copy()
        case NetworkKind.ERDOS_RENYI:
            return _erdos_renyi(plan).copy()
        case NetworkKind.RANDOM_UNDIRECTED:
            return _symmetric(_random_links(plan, step))
        case NetworkKind.RANDOM_DIRECTED:
            return _random_links(plan, step)
        case NetworkKind.EDGE_LIST:
            return _from_edges(plan.size, plan.edges[step % len(plan.edges)])


def out_neighbours(matrix: Links, member: int) -> tuple[int, ...]:
    """Return the other members to which `member` sends."""
    return tuple(int(j) for j in np.flatnonzero(matrix[member]) if j != member)


def in_neighbours(matrix: Links, member: int) -> tuple[int, ...]:
    """Return the other members that send to `member`."""
    return tuple(int(j) for j in np.flatnonzero(matrix[:, member]) if j != member)


def push_weights(matrix: Links) -> Weights:
    """Return Push-Sum's column-stochastic matrix: a member splits equally among its receivers and itself."""
    return np.asarray((matrix / matrix.sum(axis=1, keepdims=True)).T, dtype=np.float64)


def metropolis_weights(matrix: Links) -> Weights:
    """Return the doubly stochastic matrix of undirected links: 1/(1 + larger degree of the pair)."""
    if not np.array_equal(matrix, matrix.T):
        raise NotUndirected("Metropolis weights need undirected links; use push weights on a directed network.")
    apart = matrix & ~np.eye(len(matrix), dtype=np.bool_)
    degree = apart.sum(axis=1)
    weights = np.where(apart, 1.0 / (1.0 + np.maximum.outer(degree, degree)), 0.0)
    np.fill_diagonal(weights, 1.0 - weights.sum(axis=1))
    return weights


def gossip_weights(matrix: Links, weight: float | None = None) -> Weights:
    """Return W with zero row and column sums: w_ij = weight for neighbours, w_ii = −Σ_j w_ij.

    Without `weight`, Metropolis minus identity. Assumption 2.1 of LDP-DSBO wants the eigenvalues of I + W
    above −1 apart from a single 1; a weight that breaks it makes the consensus diverge and is refused.
    """
    if weight is None:
        return metropolis_weights(matrix) - np.eye(len(matrix))
    if not np.array_equal(matrix, matrix.T):
        raise NotUndirected("Gossip weights need undirected links: LDP-DSBO mixes along symmetric edges.")
    apart = matrix & ~np.eye(len(matrix), dtype=np.bool_)
    weights = np.where(apart, weight, 0.0)
    np.fill_diagonal(weights, -weights.sum(axis=1))
    lowest = float(np.linalg.eigvalsh(np.eye(len(matrix)) + weights)[0])
    if weight <= 0 or lowest <= -1.0:
        raise InvalidNetwork(
            f"Gossip weight {weight} gives I + W an eigenvalue of {lowest:.3f}: choose a weight above 0 and "
            "below 1/(largest degree)."
        )
    return weights


def check_strongly_connected(plan: NetworkPlan, *, window: int, steps: int) -> None:
    """Refuse a schedule whose links over some window of B steps are not strongly connected (Assumption 1)."""
    if window < 1:
        raise InvalidNetwork(f"A connectivity window of {window} steps: at least 1 is needed.")
    last = window if plan.static else max(steps, window)
    for start in range(0, last - window + 1, window):
        union = np.zeros((plan.size, plan.size), dtype=np.bool_)
        for step in range(start, start + window):
            union |= links(plan, step)
        unreachable = _unreachable_pair(union)
        if unreachable is not None:
            sender, receiver = unreachable
            raise NotStronglyConnected(
                f"Between steps {start} and {start + window - 1} nothing that member {sender} sends can reach "
                f"member {receiver}. Add edges, raise the link probability, or allow a longer window."
            )


def _unreachable_pair(union: Links) -> tuple[int, int] | None:
    count, label = connected_components(csr_array(union), directed=True, connection="strong")
    if count == 1:
        return None
    # A component that no one leaves exists; whoever is in it never reaches the rest.
    for component in range(count):
        inside = label == component
        if not union[np.ix_(inside, ~inside)].any():
            return int(np.flatnonzero(inside)[0]), int(np.flatnonzero(~inside)[0])
    raise AssertionError("a graph that is not strongly connected has a sink component")


def _uniform(plan: NetworkPlan, name: str, step: int, count: int) -> NDArray[np.float64]:
    # Raw words and a shift, not Generator.random: members with different versions of numpy must agree.
    raw = stream(plan.seed, name, 0, step).bit_generator.random_raw(count)
    words = np.asarray(raw, dtype=np.uint64)
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _random_links(plan: NetworkPlan, step: int) -> Links:
    low, high = plan.probability
    shape = (plan.size, plan.size)
    rho = low + (high - low) * _uniform(plan, "network.probability", 0, plan.size**2).reshape(shape)
    drawn: Links = _uniform(plan, "network.links", step, plan.size**2).reshape(shape) < rho
    np.fill_diagonal(drawn, True)
    return drawn


def _symmetric(matrix: Links) -> Links:
    upper = np.triu(matrix)
    return upper | upper.T


@lru_cache(maxsize=64)
def _erdos_renyi(plan: NetworkPlan) -> Links:
    """Draw one undirected network for the whole run; drawn again until it is connected."""
    for attempt in range(_ERDOS_RENYI_ATTEMPTS):
        matrix = _symmetric(_random_links(plan, attempt))
        if _unreachable_pair(matrix) is None:
            return matrix
    raise NotStronglyConnected(
        f"{_ERDOS_RENYI_ATTEMPTS} Erdős–Rényi networks with probability {plan.probability} and {plan.size} "
        "members were all disconnected: raise the probability above ln(n)/n."
    )


def _circulant(size: int, degree: int) -> Links:
    matrix = np.eye(size, dtype=np.bool_)
    members = np.arange(size)
    for distance in range(1, degree // 2 + 1):
        matrix[members, (members + distance) % size] = True
        matrix[members, (members - distance) % size] = True
    if degree % 2 == 1:
        matrix[members, (members + size // 2) % size] = True
    return matrix


@lru_cache(maxsize=64)
def _regular(plan: NetworkPlan) -> Links:
    """Shuffle a circulant r-regular network by edge swaps, which keep it simple, connected and regular."""
    matrix = _circulant(plan.size, plan.degree)
    swaps = _SWAPS_PER_LINK * plan.size * plan.degree
    draws = _uniform(plan, "network.swaps", 0, 2 * swaps).reshape(swaps, 2)
    edges = [(int(i), int(j)) for i, j in np.argwhere(np.triu(matrix, 1))]
    neighbours = [set(out_neighbours(matrix, member)) for member in range(plan.size)]
    for first, second in (draws * len(edges)).astype(int):
        (a, b), (c, d) = edges[first], edges[second]
        if len({a, b, c, d}) < 4 or d in neighbours[a] or b in neighbours[c]:
            continue
        _swap(neighbours, (a, b), (c, d))
        # From every other member one came to a, b, c or d before; a leads to d and b to c, so a and b are left to join.
        if _are_joined(neighbours, a, b):
            edges[first], edges[second] = (a, d), (c, b)
        else:
            _swap(neighbours, (a, d), (c, b))
    return _from_edges(plan.size, ((i, j) for i, others in enumerate(neighbours) for j in others))


def _swap(neighbours: list[set[int]], first: tuple[int, int], second: tuple[int, int]) -> None:
    """Replace edges a–b and c–d by a–d and c–b."""
    (a, b), (c, d) = first, second
    for i, j in ((a, b), (c, d)):
        neighbours[i].remove(j)
        neighbours[j].remove(i)
    for i, j in ((a, d), (c, b)):
        neighbours[i].add(j)
        neighbours[j].add(i)


def _are_joined(neighbours: list[set[int]], one: int, other: int) -> bool:
    """Whether a path leads from one member to another: searched from both ends, so that it is found soon."""
    seen, edge = ({one}, {other}), [{one}, {other}]
    while all(edge):
        side = int(len(edge[1]) < len(edge[0]))
        edge[side] = set().union(*(neighbours[member] for member in edge[side])) - seen[side]
        if edge[side] & seen[1 - side]:
            return True
        seen[side].update(edge[side])
    return False


def _from_edges(size: int, edges: Iterable[tuple[int, int]]) -> Links:
    matrix = np.eye(size, dtype=np.bool_)
    for sender, receiver in edges:
        matrix[sender, receiver] = True
    return matrix


def _check_edges(size: int, edges: tuple[tuple[tuple[int, int], ...], ...]) -> None:
    if not edges:
        raise InvalidNetwork("An edge-list network needs the edges of at least one step.")
    for step, listed in enumerate(edges):
        for sender, receiver in listed:
            if not (0 <= sender < size and 0 <= receiver < size):
                raise InvalidNetwork(
                    f"Edge ({sender}, {receiver}) of step {step}: members are numbered 0 … {size - 1}."
                )
