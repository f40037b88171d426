"""Generalised linear models over columns of several parties: what crosses, and where its sides are found."""

from parley.protocols.glm.settings import GlmSpec
from parley.spec.algorithms import Algorithm

ALGORITHM = Algorithm(
    GlmSpec,
    protocol="parley.protocols.glm.codec:PROTOCOL",
    party="parley.party.glm.role:ALGORITHM",
    coordinator="parley.coordinator.glm.program:ALGORITHM",
    title="GLM: linear, logistic, Poisson, gamma and Tweedie regression with standard errors",
)
