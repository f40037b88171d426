"""AsySQN: asynchronous quasi-Newton on columns: what crosses, and where its sides are found."""

from parley.protocols.asysqn.settings import AsysqnSpec
from parley.spec.algorithms import Algorithm

ALGORITHM = Algorithm(
    AsysqnSpec,
    protocol="parley.protocols.asysqn.codec:PROTOCOL",
    party="parley.party.asysqn.role:ALGORITHM",
    coordinator="parley.coordinator.asysqn.program:ALGORITHM",
    title="AsySQN: asynchronous quasi-Newton on columns",
)
