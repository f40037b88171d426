"""LDP-DSBO: decentralised bilevel learning under local privacy: what crosses, and where its sides are found."""

from parley.protocols.ldp_dsbo.settings import LdpDsboSpec
from parley.spec.algorithms import Algorithm

ALGORITHM = Algorithm(
    LdpDsboSpec,
    protocol="parley.protocols.ldp_dsbo.codec:PROTOCOL",
    party="parley.party.ldp_dsbo.role:ALGORITHM",
    coordinator="parley.coordinator.ldp_dsbo.program:ALGORITHM",
    title="LDP-DSBO: decentralised bilevel learning under local privacy",
)
