"""BAMBI: vertical bilevel learning: what crosses, and where its sides are found."""

from parley.protocols.bambi.settings import BambiSpec
from parley.spec.algorithms import Algorithm

ALGORITHM = Algorithm(
    BambiSpec,
    protocol="parley.protocols.bambi.codec:PROTOCOL",
    party="parley.party.bambi.role:ALGORITHM",
    coordinator="parley.coordinator.bambi.program:ALGORITHM",
    title="BAMBI: vertical bilevel learning",
)
