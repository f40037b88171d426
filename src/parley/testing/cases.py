"""What an author says of an algorithm, so that the contract suite can try it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import yaml
from numpy.typing import ArrayLike

from parley.protocols.protocol import CrossingProtocol, protocol_of
from parley.spec.algorithms import algorithm_named
from parley.spec.parsing import parse_spec
from parley.spec.run import RunSpec

Columns = Mapping[str, ArrayLike]
"""Values by column; `id` names the rows, and `label`, where there is one, is the label and no feature."""
PATIENCE = {"wait_seconds": 120, "round_seconds": 30}
"""What the suite's runs wait for a party that comes back, unless the spec says otherwise."""


@dataclass(frozen=True, eq=False)
class AlgorithmCase:
    """A small run of an algorithm: a second or two, a few checkpoints, the same bits whenever it is made."""

    spec: str
    """The run as YAML; it names every party of `tables`."""
    tables: Mapping[str, Mapping[str, Columns]]
    """Tables of each party, by name."""
    pooled: Callable[[str], Mapping[str, Mapping[str, ArrayLike]]]
    """What the same computation gives where all data are in one place: for each party, tensors of its saved model.

    It is given the run's id: noise is a function of that and of `parley.testing.KEY`, which every holder has.
    """
    labels: Mapping[str, Columns] = field(default_factory=dict)
    """The coordinator's label tables, by name."""
    metrics: Callable[[], Mapping[str, float]] = dict
    """Metrics of the run that the pooled computation gives too."""
    tolerance: float = 1e-6
    """How far, relatively and absolutely, a federated number may lie from the pooled one."""
    foretold: bool = True
    """Whether the algorithm says what its rounds carry (`forecast`), so that a run's cost is known before it."""
    public: Mapping[str, str] = field(default_factory=dict)
    """Numbers and bytes of the algorithm's messages that hold nothing of anyone's records: field, and why."""

    @cached_property
    def parsed(self) -> RunSpec:
        """The spec."""
        return parse_spec(self.spec)

    @property
    def algorithm(self) -> str:
        """The algorithm's name."""
        return self.parsed.train.algorithm

    @property
    def protocol(self) -> CrossingProtocol:
        """What crosses in it."""
        return protocol_of(algorithm_named(self.algorithm))

    @property
    def parties(self) -> list[str]:
        """Who takes part."""
        return [entry.name for entry in self.parsed.parties]

    @property
    def patient_spec(self) -> str:
        """The spec as the suite runs it."""
        content: dict[str, Any] = yaml.safe_load(self.spec)
        return yaml.safe_dump(PATIENCE | content)
