"""Which algorithms there are: each is registered by an entry point, in this distribution or in another one.

An entry point of the group `parley.algorithms` is named like the algorithm and loads an `Algorithm`. That object names
the sides of the algorithm without importing them: a party imports the party side, a coordinator the coordinator side,
and whoever reads a spec imports neither.
"""

import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from parley.spec.protection import ProtectionSpec
from parley.spec.section import Section

GROUP = "parley.algorithms"
Layout = Literal["vertical", "horizontal"]


class AlgorithmUnknown(LookupError):
    """No installed distribution registers such an algorithm."""


class AlgorithmSettings(Section):
    """The `train` section of a spec: what the rest of a run has to know of any algorithm's settings."""

    algorithm: str
    """The algorithm that reads this section."""

    layout: ClassVar[Layout]
    """Whether parties hold columns of the same rows (`vertical`), or rows of the same columns."""
    sends_clear_values: ClassVar[bool] = False
    """Whether parties send each other values that no mechanism hides; a policy has to name such an algorithm."""
    goes_on_without_parties: ClassVar[bool] = False
    """Whether a round may be summed without a lost party, so that a spec may ask for `recovery`."""

    noises_sums: ClassVar[bool] = False
    """Whether parties can noise what single rows add to sums, so that a spec may ask for `features: per_sum`."""
    noises_counts: ClassVar[bool] = False
    """Whether `features: counts` makes everything that leaves of a party's rows noisy."""

    validates: ClassVar[Literal["split", "at_end", "always", "never"]] = "never"
    """Whether a run measures "validation" figures: on the rows of `split.validation`, on these but only at its end,
    always (the upper rows serve it), or never; the second and the last cannot be stopped early."""

    @property
    def averages_figures(self) -> bool:
        """Whether parties can sum figures of their own labels, so that a spec may ask for `evaluation.averages`."""
        return False

    @property
    def run_length(self) -> int:
        """Iterations of the whole run, as people count them."""
        raise NotImplementedError

    @property
    def tables(self) -> tuple[str, ...]:
        """Tables that the run reads besides each party's own."""
        return ()

    @property
    def imports(self) -> tuple[str, ...]:
        """Code of one's own that the run asks hosts to import, as `package.module:name`."""
        return ()

    @property
    def sampled_parties(self) -> int | None:
        """How many parties take part in a round's sum; None for all."""
        return None

    @property
    def bounds_records(self) -> bool:
        """Whether the run promises an ε for each record. What one record changes is then bounded row by row, so that no
        figure may be learnt from rows before."""
        return False

    @property
    def works_unattended(self) -> bool:
        """Whether parties go on by themselves while one of them, or the coordinator, is away."""
        return False

    def sum_bits(self, dtype: str) -> Literal[32, 64]:  # noqa: ARG002 (exact sums serve any precision)
        """The ring that sums of a run in this precision need, where its spec does not say."""
        return 64

    @property
    def takes_coarse_sums(self) -> bool:
        """Whether sums of two or three digits will do, so that a spec may ask for a ring of 16 bits."""
        return False

    def check(self, privacy: ProtectionSpec, parties: list[str]) -> None:
        """Refuse, by a ValueError, a protection or parties that this algorithm cannot work with."""

    def check_split(self, lower: str | float, upper: str | float) -> None:
        """Refuse, by a ValueError, rows of the two levels that this algorithm cannot work with."""


@dataclass(frozen=True)
class Algorithm:
    """What a distribution registers: the settings, and where the rest is found, as `module:name`."""

    settings: type[AlgorithmSettings]
    protocol: str
    """A `CrossingProtocol`: what crosses."""
    party: str
    """A `PartyAlgorithm`."""
    coordinator: str
    """A `CoordinatorAlgorithm`."""
    title: str = ""
    """The algorithm in a few words, for people."""

    def load(self, side: Literal["protocol", "party", "coordinator"]) -> Any:
        """Import one side."""
        return pkgutil.resolve_name(getattr(self, side))


def installed_names() -> list[str]:
    """Names of all algorithms of all installed distributions; imports none of them."""
    return sorted(entry_points(group=GROUP).names)


@cache
def installed() -> Mapping[str, Algorithm]:
    """Every algorithm of every installed distribution, by name."""
    found = {entry.name: entry.load() for entry in entry_points(group=GROUP)}
    return MappingProxyType(dict(sorted(found.items())))


def algorithm_named(name: str) -> Algorithm:
    """The algorithm of this name."""
    if name not in installed():
        raise AlgorithmUnknown(f"no algorithm {name!r} is installed here, only {', '.join(installed())}")
    return installed()[name]
