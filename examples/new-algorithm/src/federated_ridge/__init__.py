"""Federated ridge regression: what is registered. Whoever reads a spec imports this, and neither side."""

from federated_ridge.settings import RidgeSpec
from parley.spec.algorithms import Algorithm

ALGORITHM = Algorithm(
    RidgeSpec,
    protocol="federated_ridge.codec:PROTOCOL",
    party="federated_ridge.party:ALGORITHM",
    coordinator="federated_ridge.coordinator:ALGORITHM",
    title="Federated ridge regression: one secure sum of moments",
)
