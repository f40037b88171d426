"""Two federations for all built-in algorithms."""

import pytest

from parley.testing import Stage
from tests.contract_suite.built_in import BuiltInContract


@pytest.fixture(scope="session")
def shared_stage(request, tmp_path_factory):
    """Federations with the tables of every case that is tried."""
    found = {item.cls for item in request.session.items if item.cls and issubclass(item.cls, BuiltInContract)}
    cases = [contract.case for contract in sorted(found, key=lambda contract: contract.__name__)]
    with Stage(tmp_path_factory.mktemp("contracts"), cases) as stage:
        yield stage
