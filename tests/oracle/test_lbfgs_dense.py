"""L-BFGS against dense BFGS: the inverse Hessian written out as a matrix, in extended precision."""

import numpy as np
import pytest

from parley.numerics.lbfgs import Curvature, Damping, DampingMode, direction, remember

HISTORIES = 1000


def dense_inverse_hessian(memory, size):
    """H ← (I − ρsŷᵀ)H(I − ρŷsᵀ) + ρssᵀ from H = I/γ, oldest pair first."""
    identity = np.eye(size, dtype=np.longdouble)
    H = identity / np.longdouble(memory.gamma)
    for pair in memory.pairs:
        s, y = pair.step.astype(np.longdouble), pair.damped.astype(np.longdouble)
        rho = 1 / (s @ y)
        left = identity - rho * np.outer(s, y)
        H = left @ H @ left.T + rho * np.outer(s, s)
    return (H + H.T) / 2


def random_history(seed, mode):
    """Steps of mixed length on a random symmetric, indefinite Hessian that drifts from pair to pair."""
    rng = np.random.default_rng([seed, list(DampingMode).index(mode)])
    size, pairs = int(rng.integers(2, 13)), int(rng.integers(1, 9))
    damping = Damping(memory=int(rng.integers(1, 8)), mode=mode, delta=float(rng.choice([0.01, 0.1, 1.0])))
    basis = np.linalg.qr(rng.standard_normal((size, size)))[0]
    memory, negative = Curvature(), 0
    for _ in range(pairs):
        spectrum = rng.uniform(-1.0, 1.5, size) * damping.delta * rng.choice([1.0, 10.0, 100.0])
        step = rng.standard_normal(size) * 10.0 ** rng.uniform(-4, 1)
        difference = (basis * spectrum) @ (basis.T @ step)
        negative += float(step @ difference) <= 0.0
        memory = remember(damping, memory, step, difference)
    return memory, rng.standard_normal(size), negative


@pytest.mark.parametrize("mode", list(DampingMode))
def test_the_two_loops_equal_dense_bfgs_and_descend_through_negative_curvature(mode):
    negative = 0
    for seed in range(HISTORIES):
        memory, gradient, bad_pairs = random_history(seed, mode)
        negative += bad_pairs > 0
        found = direction(memory, gradient)
        H = dense_inverse_hessian(memory, gradient.size)
        expected = np.asarray(H @ gradient, dtype=np.float64)
        assert np.linalg.norm(found - expected) <= 1e-9 * np.linalg.norm(expected), seed
        assert float(gradient @ found) > 0.0, seed
        assert np.linalg.eigvalsh(H.astype(np.float64))[0] > 0.0, seed
    assert negative > HISTORIES // 2  # the histories do contain what damping is for
