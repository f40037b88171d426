"""What can leave: one entry of the manifest for each field of the algorithm's messages."""

from collections.abc import Iterator

from parley.privacy.manifest import LABEL_PRIVACY, Entry, control, derived
from parley.protocols.explore.settings import ExploreSpec
from parley.protocols.statements import COORDINATOR, PARTIES, Statement, label_noise
from parley.spec.run import RunSpec

CROSSINGS: tuple[Entry, ...] = (
    derived("explore.v1.Instruction.classes", "labels", LABEL_PRIVACY, "all parties"),
    *control("explore.v1.Instruction", "round phase flip k", "all parties"),
    *control("explore.v1.Contribution", "round", "coordinator"),
    *control("party.v1.ExchangeRequest", "explore", "all parties"),
    *control("party.v1.ExchangeResponse", "explore", "coordinator"),
)


def statements(spec: RunSpec) -> Iterator[Statement]:
    """What leaves in one run."""
    settings = spec.settings(ExploreSpec)
    against = ""
    if settings.against_label:
        yield Statement(
            COORDINATOR,
            f"the label of every row that is explored to all parties. {label_noise(spec)}",
            ("explore.v1.Instruction.classes",),
        )
        against = ", weight of evidence and information value"
    yield Statement(
        PARTIES,
        f"figures of its columns to three digits, as far as its policy shares them: rows, missing share, mean, "
        f"quantiles, bins of at least {settings.smallest_cell} rows, stability{against}",
        tuple(f"party.v1.TunedCoefficient.{name}" for name in ("value", "column")),
        "any time",
    )
