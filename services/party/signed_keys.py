"""Keys of a session, signed with the party's certificate, as they cross."""

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass

from parley.contracts.aggregation.v1 import aggregation_pb2 as pb
from parley.privacy.consent import Agreement, Purpose
from parley.privacy.session_keys import SessionKey, SignedKey, sign_key
from parley.protocols.aggregation.codec import enum_codes, named
from parley.services.party.config import PartyConfig
from parley.services.wire.certificates import CertificateExpired, CertificateUnreadable, load_identity
from parley.services.wire.revocation import Standing

_PURPOSES: dict[Purpose, pb.AgreedPurpose.ValueType] = enum_codes(pb.AgreedPurpose.DESCRIPTOR)


@dataclass(frozen=True)
class Vouched:
    """A party's key for a session, and what its signature says that the party agreed to."""

    key: SignedKey
    agreement: Agreement


def encode_key(
    config: PartyConfig, key: SessionKey, session_id: str, agreement: Agreement | None = None
) -> pb.SignedKey:
    """This party's key for a session, and what it agreed to."""
    identity = load_identity(config.identity)
    signed = sign_key(
        key,
        name=config.name,
        run_id=session_id,
        attempt=0,
        certificate_pem=identity.certificate_chain,
        certificate_key_pem=identity.private_key,
        agreement=b"" if agreement is None else agreement.content,
    )
    message = pb.SignedKey(
        party=signed.name,
        public_key=signed.public_key,
        certificate=signed.certificate_pem,
        signature=signed.signature,
    )
    if agreement is not None:
        message.agreement.CopyFrom(
            pb.Agreement(
                purpose=_PURPOSES[agreement.purpose],
                spec_digest=agreement.spec_digest,
                nonce=agreement.nonce,
                rows=agreement.rows,
                id_digest=agreement.id_digest,
                upper_size=agreement.upper_size,
                protocol=agreement.protocol,
            )
        )
    return message


def decode_key(message: pb.SignedKey, session_id: str, agreement: bytes = b"") -> SignedKey:
    """Another party's key; whoever uses it verifies it."""
    return SignedKey(
        message.party,
        session_id,
        0,
        message.public_key,
        message.certificate,
        message.signature,
        agreement=agreement,
    )


def decode_vouched(message: pb.SignedKey, session_id: str) -> Vouched:
    """Another party's key for a session, with what it agreed to; whoever uses it verifies it."""
    told = message.agreement
    agreement = Agreement(
        named(_PURPOSES, told.purpose),
        told.spec_digest,
        told.nonce,
        told.rows,
        told.id_digest,
        told.upper_size,
        told.protocol,
    )
    return Vouched(decode_key(message, session_id, agreement.content), agreement)


def require_standing(config: PartyConfig, keys: Iterable[pb.SignedKey]) -> None:
    """Refuse a session with a party whose certificate was taken back.

    Raises:
        CertificateRevoked: naming the party.
    """
    standing = Standing(config.identity)
    for key in keys:
        # one that cannot be read or has expired is refused where its signature is verified
        with contextlib.suppress(CertificateUnreadable, CertificateExpired):
            standing.require(key.certificate, whose=key.party)
