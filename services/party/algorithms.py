"""The party sides of the algorithms that are installed here. One is imported when the first run needs it.

A party that waits for runs has no use for torch, which alone takes more memory than the rest of the service.
"""

import sys
from collections import ChainMap

from threadpoolctl import threadpool_limits

from parley.party.roles import PartyAlgorithm
from parley.protocols.refusals import Catalogue, Refusal
from parley.spec.algorithms import algorithm_named

_loaded: dict[type[Exception], Refusal] = {}


def party_side(name: str) -> PartyAlgorithm:
    """An algorithm's party side."""
    side: PartyAlgorithm = algorithm_named(name).load("party")
    _loaded.update(side.refusals)
    return side


def with_loaded(catalogue: Catalogue) -> Catalogue:
    """A catalogue, and behind it the refusals of the algorithms that have been imported; it grows with them."""
    return ChainMap(dict(catalogue), _loaded)


def limit_threads(threads: int) -> None:
    """Let what has been imported compute with so many threads."""
    threadpool_limits(threads)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)
