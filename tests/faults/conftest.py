"""One federation for all scenarios: they leave it whole."""

import random

import pytest

from tests.faults.harness import make_federation
from tests.faults.stage import Stage


@pytest.fixture(scope="session")
def stage(tmp_path_factory):
    directory = tmp_path_factory.mktemp("stage")
    federation = make_federation(directory / "federation", directory / "data", runs=3, queue=0)
    with federation, federation.connect() as client:
        stage = Stage(federation, client, random.Random(1))
        stage.check_end(stage.start())
        yield stage
