"""What can leave: one entry of the manifest for each field of the algorithm's messages."""

from collections.abc import Iterator

from parley.privacy.manifest import LABEL_PRIVACY, SECURE_SUM, Entry, control, derived
from parley.protocols.explore.settings import ExploreSpec
from parley.protocols.statements import COORDINATOR, PARTIES, Statement, addends, label_noise, only_the_sum
from parley.spec.run import RunSpec

CROSSINGS: tuple[Entry, ...] = (
    derived("explore.v1.Instruction.classes", "labels", LABEL_PRIVACY, "all parties"),
    derived(
        "explore.v1.Contribution.sum",
        "products of columns",
        SECURE_SUM,
        "coordinator: the sums, which are correlations of columns, of different parties and of one",
    ),
    derived(
        "explore.v1.Instruction.products",
        "sums over all parties",
        "none: correlations of columns that their owners' `correlations` name",
        "all parties",
    ),
    derived(
        "explore.v1.MaskedColumns.elements",
        "features",
        "a mask of the owner and a third party, uniform to whoever gets it",
        "another party; together with the third one, which helps, the columns themselves",
    ),
    *control("explore.v1.MaskedColumns", "pair", "another party"),
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
    if settings.correlations:
        yield Statement(
            PARTIES,
            "columns that its `correlations` name, masked, to every other party, and sums of their products, "
            f"{only_the_sum(spec)}: it learns how every two of these columns go together. Two parties that put "
            "together what they get know the third's columns",
            ("explore.v1.MaskedColumns.elements", "explore.v1.Contribution.sum", *addends(spec)),
        )
        yield Statement(
            COORDINATOR,
            "correlations of every two of these columns, whoever has them, to all parties",
            ("explore.v1.Instruction.products",),
        )
    features = spec.privacy.features
    told = "rows, missing share, mean, quantiles, bins"
    if features.kind == "counts":
        told = f"made from noisy counts of rows, that tell of one no more than ε = {features.epsilon:g} allows: bins"
    yield Statement(
        PARTIES,
        f"figures of its columns to three digits, as far as its policy shares them: {told} of at least "
        f"{settings.smallest_cell} rows, stability{against}",
        tuple(f"party.v1.TunedCoefficient.{name}" for name in ("value", "column")),
        "any time",
    )
