"""No algorithm is left out of the suite."""

from pathlib import Path

from parley.spec.algorithms import installed


def test_every_algorithm_of_parleys_own_has_a_case_here():
    own = {name for name, algorithm in installed().items() if algorithm.protocol.startswith("parley.")}
    assert len(own) >= 5
    assert own <= {path.stem.removeprefix("test_") for path in Path(__file__).parent.glob("test_*.py")}
