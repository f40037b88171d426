"""Coefficients on the wire."""

from dataclasses import asdict

from parley.contracts.party.v1 import party_service_pb2 as pb
from parley.privacy.coefficients import SharedCoefficients
from parley.privacy.release import Release
from parley.services.wire.pages import page_of


def encode_coefficients(release: Release[SharedCoefficients], page_token: str = "") -> pb.GetCoefficientsResponse:
    """A page of what a party lets leave."""
    content = release.content
    page, following = page_of([pb.TunedCoefficient(**asdict(one)) for one in content.coefficients], page_token)
    return pb.GetCoefficientsResponse(coefficients=page, kept=content.kept, next_page_token=following)
