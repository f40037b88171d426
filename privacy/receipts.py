"""Receipts: what each party says, under its signature, that it was told and has released so far in a session.

Masks keep a coordinator that tells parties different things from learning anything; receipts let the parties know. At
every checkpoint and at the end each party signs the heads of its transcripts with the others, a digest of all that it
has released, and the head of the coordinator's label ledger as it was told. The coordinator hands everybody's receipts
to everybody. Two parties whose heads differ were told different things; two ledger heads mean two ledgers.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from parley.privacy.session_keys import joined

_LABEL = b"parley/receipt/v1"


class TranscriptDiffers(ValueError):
    """Parties of the session were told different things, or the coordinator keeps their receipts back."""


class ReceiptInvalid(TranscriptDiffers):
    """A receipt is not the party's, or not of this session and round."""


@dataclass(frozen=True)
class LedgerHead:
    """The newest entry of the coordinator's label ledger for the run, as it tells."""

    entries: int = 0
    head: bytes = b""
    """SHA-256 of that entry; empty while there is none."""


@dataclass(frozen=True)
class Receipt:
    """One party's word at a checkpoint or at the end."""

    party: int
    name: str
    round: int
    """The last instruction that it covers."""
    consent: bytes
    """Names run, session, spec and parties (`privacy.consent`)."""
    heads: Mapping[int, bytes]
    """Of each other party: what both were told."""
    released: bytes
    """SHA-256 over all that this party has released in the session."""
    releases: int
    ledger: LedgerHead = LedgerHead()
    signature: bytes = b""

    @property
    def content(self) -> bytes:
        """The bytes that are signed."""
        heads = [b"%d" % other + b" " + head for other, head in sorted(self.heads.items())]
        counts = b"%d %d %d %d" % (self.party, self.round, self.releases, self.ledger.entries)
        return joined(_LABEL, self.name.encode(), counts, self.consent, self.released, self.ledger.head, *heads)


class ReleaseDigest:
    """A running SHA-256 over what a party sends."""

    def __init__(self) -> None:
        self.head, self.count = bytes(32), 0

    def add(self, number: int, released: bytes) -> None:
        """Note the digest of an answer."""
        self.head = hashlib.sha256(self.head + number.to_bytes(8, "big") + released).digest()
        self.count += 1


def signed(receipt: Receipt, certificate_key_pem: bytes) -> Receipt:
    """A receipt under the private key of this party's certificate."""
    key = serialization.load_pem_private_key(certificate_key_pem, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ReceiptInvalid("the certificate's key must be P-256")
    return replace(receipt, signature=key.sign(receipt.content, ec.ECDSA(hashes.SHA256())))


def verify(receipt: Receipt, certificate_pem: bytes) -> None:
    """Refuse a receipt that the holder of a certificate did not sign; the certificate was verified with its key."""
    key = x509.load_pem_x509_certificates(certificate_pem)[0].public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ReceiptInvalid(f"the certificate of {receipt.name} has no P-256 key")
    try:
        key.verify(receipt.signature, receipt.content, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        raise ReceiptInvalid(f"the receipt of {receipt.name} for round {receipt.round} has a wrong signature") from None


def check_receipts(own: Receipt, others: Sequence[Receipt]) -> None:
    """Refuse receipts, verified, that do not agree with each other.

    Raises:
        TranscriptDiffers: with who was told something else.
    """
    everyone = [own, *others]
    for receipt in others:
        if (receipt.consent, receipt.round) != (own.consent, own.round):
            raise ReceiptInvalid(f"the receipt of {receipt.name} is of another session or round")
        if receipt.ledger != own.ledger:
            raise TranscriptDiffers(
                f"the coordinator told {receipt.name} of another label ledger than {own.name}: it keeps more than one"
            )
    for place, one in enumerate(everyone):
        for other in everyone[:place]:
            if one.heads.get(other.party) != other.heads.get(one.party) or one.party == other.party:
                raise TranscriptDiffers(
                    f"{one.name} and {other.name} were told different things up to round {own.round}: the session ends "
                    "here; ask the coordinator's operator"
                )
