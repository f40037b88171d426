"""Figures of columns before training: what crosses, and where its sides are found."""

from parley.protocols.explore.settings import ExploreSpec
from parley.spec.algorithms import Algorithm

ALGORITHM = Algorithm(
    ExploreSpec,
    protocol="parley.protocols.explore.codec:PROTOCOL",
    party="parley.party.explore.role:ALGORITHM",
    coordinator="parley.coordinator.explore.program:ALGORITHM",
    title="Explore: figures of each column, stability, and what it says about the label",
)
