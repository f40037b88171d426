"""What can leave: one entry of the manifest for each field of the algorithm's messages."""

from collections.abc import Iterator

from parley.privacy.manifest import LABEL_PRIVACY, SECURE_SUM, Entry, control, derived
from parley.protocols.glm.settings import GlmSpec
from parley.protocols.statements import COORDINATOR, PARTIES, Statement, addends, label_noise, only_the_sum
from parley.spec.run import RunSpec

CROSSINGS: tuple[Entry, ...] = (
    derived(
        "glm.v1.Contribution.sum",
        "features, under secret weights of the party's own that the coordinator never sees",
        SECURE_SUM,
        "coordinator: the sum over all parties, which spans their columns without being any of them",
    ),
    derived("glm.v1.Instruction.solution", "labels and sums over all parties", LABEL_PRIVACY, "all parties"),
    derived(
        "glm.v1.Instruction.covariance",
        "sums over all parties, and labels through the fitted means",
        LABEL_PRIVACY,
        "all parties; each can read its own coefficients' standard errors from it, with its secret weights",
    ),
    derived(
        "glm.v1.Instruction.inverse_gram",
        "sums over all parties",
        "secret weights of each party: under them it reads its own columns' part, and of others' nothing else",
        "all parties; each can read how far its own columns follow from all others",
    ),
    derived(
        "glm.v1.Instruction.tie",
        "how far shrunk coefficients of all parties together are from the solution",
        "a power of two, from sums that reach the coordinator",
        "all parties",
    ),
    *control("glm.v1.Instruction", "round phase first count freedom k", "all parties"),
    *control("glm.v1.Contribution", "round", "coordinator"),
    *control("party.v1.ExchangeRequest", "glm", "all parties"),
    *control("party.v1.ExchangeResponse", "glm", "coordinator"),
)


def statements(spec: RunSpec) -> Iterator[Statement]:
    """What leaves in one run."""
    train, hidden = spec.settings(GlmSpec), only_the_sum(spec)
    yield Statement(
        PARTIES,
        f"secret mixtures of its columns for every training row, once, {hidden}: it learns which space all columns "
        "span together, so that it can confirm a guessed column, and no column itself",
        ("glm.v1.Contribution.sum", *addends(spec)),
    )
    inferences = ("glm.v1.Instruction.covariance", "glm.v1.Instruction.inverse_gram")
    covariance = () if train.penalty.strength else inferences
    inferred = ", the covariance of the coefficients and the inverse inner products of columns" if covariance else ""
    yield Statement(
        COORDINATOR,
        f"the solution{inferred} under these mixtures to all parties: each reads its own coefficients from it, and "
        f"nothing about single rows goes to parties. {_labels(spec)}",
        ("glm.v1.Instruction.solution", *covariance),
    )
    if train.penalty.strength:
        yield Statement(
            PARTIES,
            "inner products of its secret weights"
            + (" and of its shrunk coefficients with them" if train.penalty.l1_ratio else "")
            + f", {hidden}: with them the coordinator knows how alike any two rows are",
            ("glm.v1.Contribution.sum",),
        )
    if train.penalty.l1_ratio:
        yield Statement(
            COORDINATOR,
            "how strongly shrunk coefficients are tied to the solution, with every shrinking step, to all parties",
            ("glm.v1.Instruction.tie",),
        )
    yield Statement(
        PARTIES,
        "the coefficients of its columns with standard errors and variance inflation, to three digits, as far as its "
        "policy shares them",
        tuple(
            f"party.v1.TunedCoefficient.{name}"
            for name in ("value", "column", "standard_error", "p_value", "low", "high", "figure")
        ),
        "any time",
    )


def _labels(spec: RunSpec) -> str:
    if spec.privacy.labels.mechanism == "off":
        return "Labels are not protected beyond that: coefficients are exact functions of them"
    return label_noise(spec)
