"""HGP: decentralised hyper-gradients by Push-Sum: what crosses, and where its sides are found."""

from parley.protocols.hgp.settings import HgpSpec
from parley.spec.algorithms import Algorithm

ALGORITHM = Algorithm(
    HgpSpec,
    protocol="parley.protocols.hgp.codec:PROTOCOL",
    party="parley.party.hgp.role:ALGORITHM",
    coordinator="parley.coordinator.hgp.program:ALGORITHM",
    title="HGP: decentralised hyper-gradients by Push-Sum",
)
