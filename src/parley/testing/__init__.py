"""For authors of algorithms: a contract suite for pytest that runs on any algorithm (`parley-fl[testing]`)."""

import pytest

pytest.register_assert_rewrite("parley.testing.contract", "parley.testing.cases", "parley.testing.stage")

from parley.testing.cases import AlgorithmCase  # noqa: E402
from parley.testing.contract import AlgorithmContract  # noqa: E402
from parley.testing.federations import KEY  # noqa: E402
from parley.testing.stage import Stage  # noqa: E402

__all__ = ["KEY", "AlgorithmCase", "AlgorithmContract", "Stage"]
