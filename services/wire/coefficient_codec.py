"""Tuned coefficients on the wire."""

from dataclasses import asdict

from parley.contracts.party.v1 import party_service_pb2 as pb
from parley.privacy.coefficients import SharedCoefficients
from parley.privacy.release import Release


def encode_coefficients(release: Release[SharedCoefficients]) -> pb.GetCoefficientsResponse:
    """What a party lets leave."""
    content = release.content
    return pb.GetCoefficientsResponse(
        coefficients=[pb.TunedCoefficient(**asdict(one)) for one in content.coefficients], kept=content.kept
    )
