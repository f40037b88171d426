"""The contract suite on Parley's own algorithms, which share two federations."""

import pytest

from parley.testing import AlgorithmContract

PARTIES = ("north", "south", "east")


class BuiltInContract(AlgorithmContract):
    """What every algorithm keeps, in federations that are started once for all of them."""

    @pytest.fixture(scope="class")
    def stage(self, shared_stage):
        return shared_stage
