"""The heterogeneous synthetic clients of the HGP paper (appendix A.1, after Marfoq et al. 2021).

Three underlying linear rules, each client a Dirichlet(0.4) mixture of them: x uniform on [−1, 1]^d, the row's rule
drawn from the client's mixture, y ~ Bernoulli(sigmoid(⟨x, θ⟩ + noise)). The paper does not print the scale of θ;
uniform on [−4, 4]^d gives problems whose mean Hessian lies around 0.06–0.09 with λ = 0.01.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parley.numerics.streams import stream


@dataclass(frozen=True)
class Client:
    """One party's training and validation rows; labels are 0 or 1."""

    features: NDArray[np.float64]
    labels: NDArray[np.int64]
    validation_features: NDArray[np.float64]
    validation_labels: NDArray[np.int64]


def synthetic_clients(
    seed: int,
    *,
    clients: int = 3,
    dimension: int = 5,
    rows: int = 100,
    rules: int = 3,
    concentration: float = 0.4,
    rule_scale: float = 4.0,
) -> list[Client]:
    """Draw `clients` clients with `rows` training and `rows` validation rows each."""
    theta = stream(seed, "synthetic.rules").uniform(-rule_scale, rule_scale, size=(rules, dimension))
    return [_client(seed, i, theta, rows, concentration) for i in range(clients)]


def _client(seed: int, i: int, theta: NDArray[np.float64], rows: int, concentration: float) -> Client:
    draw = stream(seed, "synthetic.client", k=i)
    mixture = draw.dirichlet(np.full(len(theta), concentration))
    features = draw.uniform(-1.0, 1.0, size=(2 * rows, theta.shape[1]))
    rule = draw.choice(len(theta), size=2 * rows, p=mixture)
    logits = (features * theta[rule]).sum(axis=1) + draw.standard_normal(2 * rows)
    labels = (draw.random(2 * rows) < 1.0 / (1.0 + np.exp(-logits))).astype(np.int64)
    return Client(features[:rows], labels[:rows], features[rows:], labels[rows:])
