"""FedBiO: horizontal bilevel learning by averages: what crosses, and where its sides are found."""

from parley.protocols.fedbio.settings import FedbioSpec
from parley.spec.algorithms import Algorithm

ALGORITHM = Algorithm(
    FedbioSpec,
    protocol="parley.protocols.fedbio.codec:PROTOCOL",
    party="parley.party.fedbio.role:ALGORITHM",
    coordinator="parley.coordinator.fedbio.program:ALGORITHM",
    title="FedBiO: horizontal bilevel learning by averages",
)
