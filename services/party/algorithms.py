"""The party sides of the algorithms that are installed here."""

from collections.abc import Collection

from parley.party.roles import PartyAlgorithm
from parley.protocols.refusals import Catalogue
from parley.spec.algorithms import algorithm_named, installed


def party_side(name: str) -> PartyAlgorithm:
    """An algorithm's party side."""
    side: PartyAlgorithm = algorithm_named(name).load("party")
    return side


def refusals_of(accepted: Collection[str]) -> Catalogue:
    """The refusals of the algorithms that a policy accepts; code of the others is not imported."""
    sides = [party_side(name) for name in accepted if name in installed()]
    return {kind: refusal for side in sides for kind, refusal in side.refusals.items()}
