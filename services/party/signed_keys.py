"""Keys of a session, signed with the party's certificate, as they cross."""

from parley.contracts.aggregation.v1 import aggregation_pb2 as pb
from parley.privacy.session_keys import SessionKey, SignedKey, sign_key
from parley.services.party.config import PartyConfig
from parley.services.wire.certificates import load_identity


def encode_key(config: PartyConfig, key: SessionKey, session_id: str) -> pb.SignedKey:
    """This party's key for a session."""
    identity = load_identity(config.identity)
    signed = sign_key(
        key,
        name=config.name,
        run_id=session_id,
        attempt=0,
        certificate_pem=identity.certificate_chain,
        certificate_key_pem=identity.private_key,
    )
    return pb.SignedKey(
        party=signed.name,
        public_key=signed.public_key,
        certificate=signed.certificate_pem,
        signature=signed.signature,
    )


def decode_key(message: pb.SignedKey, session_id: str) -> SignedKey:
    """Another party's key for a session; whoever uses it verifies it."""
    return SignedKey(message.party, session_id, 0, message.public_key, message.certificate, message.signature)
