"""What the papers' theorems say of rates, as statistical tests: seeds are fixed, and the false-alarm rate is stated.

Theorem 1 of BAMBI has no such test: docs/papers/bambi.md says why.
"""

import numpy as np
import pytest

from parley.numerics.neumann import neumann_product
from parley.party.fedbio.objectives import Quadratic
from parley.party.fedbio.steps import Party, Randomness, Settings
from parley.privacy.ldp_accounting import Constants, Decay, LdpPlan, Oracle, Schedules, laplace_scales, losses
from parley.protocols.fedbio.messages import AveragingRound

SEEDS, ROUNDS, SETTLED, SAMPLES = 16, 240, 120, 200


def noisy_clients(count):
    """The same problem everywhere, each client with samples of its own whose mean is exact."""
    draw = np.random.default_rng(11)
    root = draw.standard_normal((3, 3))
    H, B, c, a = root @ root.T / 3 + np.eye(3), draw.standard_normal((3, 2)), draw.standard_normal(3), np.ones(3)
    spread = draw.standard_normal((count, SAMPLES, 3))
    spread -= spread.mean(axis=1, keepdims=True)
    return [Quadratic(H=H, B=B, c=c + noise, a=a, s=np.zeros(2), ridge=0.5) for noise in spread]


def solution(client):
    """Where the hyper-gradient ridge·x + Bᵀ H⁻¹ (H⁻¹(Bx + c) − a) vanishes."""
    c, inverse = client.c.mean(axis=0), np.linalg.inv(client.H)
    matrix = client.ridge * np.eye(2) + client.B.T @ inverse @ inverse @ client.B
    return np.linalg.solve(matrix, -client.B.T @ inverse @ (inverse @ c - client.a))


def settled_distance(clients, seed):
    """Mean squared distance to the solution over the last rounds of FedBiO with one sample a step."""
    settings = Settings(eta=0.05, gamma=0.2, tau=0.2, local_steps=1, radius=1e3, lower_batch=1, upper_batch=1)
    parties = [Party(settings, client) for client in clients]
    states = [party.start(np.zeros(2), np.zeros(3)) for party in parties]
    randomness = [Randomness(seed, f"client-{m}") for m in range(len(clients))]
    everyone, mean, found, wanted = tuple(range(len(clients))), None, [], solution(clients[0])
    for k in range(ROUNDS):
        asked = AveragingRound("variables", k, everyone, mean)
        made = [p.contribute(s, asked, r) for p, s, r in zip(parties, states, randomness, strict=True)]
        states, mean = [state for state, _ in made], np.mean([vector for _, vector in made], axis=0)
        if k >= SETTLED:
            found.append(np.sum((mean[:2] - wanted) ** 2))
    return float(np.mean(found))


def test_the_variance_falls_in_proportion_to_the_number_of_clients():
    """Linear speed-up in M: four times the clients, a quarter of the squared distance.

    Each seed's mean has a relative deviation of 0.4 to 0.45, hence the logarithm of the ratio of two means over 16
    seeds one of 0.15: that it leaves ln 4 ± ln 2 has a probability of 1e-5. Without the averages it would be ln 1.
    """
    few, many = (np.mean([settled_distance(noisy_clients(count), seed) for seed in range(SEEDS)]) for count in (2, 8))
    assert np.log(few / many) == pytest.approx(np.log(4), abs=np.log(2))


@pytest.mark.parametrize("terms", [1, 4, 16])
def test_a_stochastic_neumann_series_is_biased_by_what_it_leaves_out_and_by_nothing_else(terms):
    """The mean over independent Hessians is that of the mean Hessian: H⁻¹b − (I − τH)^(Q+1) H⁻¹b.

    4000 draws, three coordinates within 4.9 standard errors: a false alarm in 3e-6 of all seeds, times three cases.
    """
    draw, tau, b = np.random.default_rng(3), 0.4, np.array([1.0, -2.0, 0.5])
    H = np.diag([0.3, 1.0, 1.8])

    def product(vector, _):
        noise = 0.2 * draw.standard_normal((3, 3))
        return (H + (noise + noise.T) / 2) @ vector

    found = np.stack([neumann_product(product, b, terms=terms, tau=tau) for _ in range(4000)])
    errors = found.std(axis=0, ddof=1) / np.sqrt(len(found))
    inverse = np.linalg.solve(H, b)
    biased = inverse - np.linalg.matrix_power(np.eye(3) - tau * H, terms + 1) @ inverse
    assert (np.abs(found.mean(axis=0) - biased) < 4.9 * errors).all()
    if terms < 16:
        assert (np.abs(found.mean(axis=0) - inverse) > 10 * errors).any(), "and the bias can be seen"


def spent(oracle, iterations):
    """ε of an LDP-DSBO agent after so many steps."""
    constants = Constants(1.0, 1.0, 0.1, 0.1, 0.1, 0.1, 1.0)
    steps = Schedules(Decay(0.1, 0.9), Decay(0.1, 0.8), Decay(0.1, 0.8))
    plan = LdpPlan(constants.recursion(), steps, laplace_scales(1.0, 0.3, 0.2, 0.2), -0.6, oracle, 0.01)
    return float(np.sum(losses(plan, iterations)))


def test_epsilon_stays_finite_however_long_a_run_is_and_only_with_the_history():
    """No chance is involved: ε of a doubled length adds less each time, by a factor below one, hence has a limit."""
    lengths = [2**power for power in range(7, 13)]
    history = np.diff([spent(Oracle.HISTORY, length) for length in lengths])
    assert (history[1:] < 0.75 * history[:-1]).all()
    fresh = np.diff([spent(Oracle.MINIBATCH, length) for length in lengths])
    assert (fresh[1:] > fresh[:-1]).all(), "new rows at every step that may be drawn again cost without bound"
