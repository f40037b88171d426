"""Receipts as they cross: public digests and signatures."""

from parley.contracts.aggregation.v1 import aggregation_pb2 as pb
from parley.privacy.receipts import LedgerHead, Receipt


def encode_receipt(receipt: Receipt) -> pb.Receipt:
    """A party's receipt."""
    return pb.Receipt(
        party=receipt.party,
        name=receipt.name,
        round=receipt.round,
        consent=receipt.consent,
        heads=[pb.PairHead(party=other, head=head) for other, head in sorted(receipt.heads.items())],
        released=receipt.released,
        releases=receipt.releases,
        ledger_entries=receipt.ledger.entries,
        ledger_head=receipt.ledger.head,
        signature=receipt.signature,
    )


def decode_receipt(message: pb.Receipt) -> Receipt:
    """A party's receipt; whoever uses it verifies it."""
    return Receipt(
        message.party,
        message.name,
        message.round,
        message.consent,
        {each.party: each.head for each in message.heads},
        message.released,
        message.releases,
        LedgerHead(message.ledger_entries, message.ledger_head),
        message.signature,
    )
