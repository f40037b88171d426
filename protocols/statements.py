"""What leaves in one run, in sentences for people, and the fields of the manifest that carry it.

A test records the messages of real runs and compares the fields that were set with those that are stated here.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from parley.spec.run import RunSpec

PARTIES, COORDINATOR = "Each party sends", "The coordinator sends"
_ADDENDS = {
    "plain": ("aggregation.v1.Addend.clear",),
    "pairwise": ("aggregation.v1.Addend.masked",),
    "two_tree": (
        "aggregation.v1.Addend.roots",
        "aggregation.v1.MaskedTheta.elements",
        "peer.v1.PushRequest.masked_theta",
    ),
}


@dataclass(frozen=True)
class Statement:
    """Something that leaves in a run."""

    sender: str
    """Who sends it: the beginning of the sentence."""
    text: str
    """What, to whom, and what protects it: the rest."""
    fields: tuple[str, ...]
    """The fields that carry it, as the manifest has them but for `parley.`."""
    moment: Literal["training", "any time", "prediction"] = "training"
    """When it leaves: in each run that trains, whenever somebody asks, or only if rows are predicted."""


def addends(spec: RunSpec) -> tuple[str, ...]:
    """The fields that every addend of the run's sums uses."""
    return _ADDENDS[spec.privacy.aggregation.kind]


def only_the_sum(spec: RunSpec, sees: str = "the coordinator") -> str:
    """How addends are hidden in this run."""
    count = len(spec.parties)
    match spec.privacy.aggregation.kind:
        case "pairwise":
            return f"masked against each other, so that {sees} sees only the sum over all {count} parties"
        case "two_tree":
            return f"as random numbers up two trees of parties, so that {sees} sees only the sum over all {count}"
    return f"in the clear: {sees} sees what each party sends"


def label_noise(spec: RunSpec) -> str:
    """How labels are protected in this run."""
    labels = spec.privacy.labels
    if labels.mechanism == "off":
        return "Labels are not protected: a party can tell them from what it gets"
    limit = (
        "" if labels.budget is None else f", and the run stops before any label has cost more than {labels.budget:g}"
    )
    if labels.mechanism == "once":
        return f"The labels in it are noisy, drawn once for the whole run at ε = {labels.epsilon:g}{limit}"
    return f"The labels in it are noisy, drawn anew each time at ε = {labels.epsilon:g} and charged each time{limit}"


def common_statements(spec: RunSpec) -> Iterator[Statement]:
    """What leaves in runs of any algorithm."""
    if spec.privacy.aggregation.recovery:
        yield Statement(
            PARTIES,
            "shares of its masks, sealed for the others, with every sum; of a party that is lost the coordinator gets "
            "enough of them to open the sum over the rest, and never enough to open one party's own values",
            ("aggregation.v1.SealedShares.sealed", "aggregation.v1.DisclosedShare.share"),
        )
    vertical = spec.train.layout == "vertical"
    what, digest = ("row ids", "id_digest") if vertical else ("column names", "column_digest")
    session, agreed = "party.v1.OpenSessionResponse", "aggregation.v1.Agreement"
    yield Statement(
        PARTIES,
        f"how many rows and columns its table has, one SHA-256 of all its {what} together, and warnings about badly "
        "scaled columns, without values; the coordinator sees them",
        (f"{session}.rows", f"{session}.features", f"{session}.{digest}", f"{session}.warnings"),
    )
    if vertical:
        yield Statement(
            PARTIES,
            "how many rows are common and one SHA-256 of all their ids, signed, to every other party: each sees that "
            "all were told the same",
            (f"{agreed}.rows", f"{agreed}.id_digest"),
        )
    yield Statement(
        PARTIES,
        "the names and sizes of tables that its policy opens, when the coordinator or its clients ask",
        ("party.v1.TableSummary.rows", "party.v1.TableSummary.features", "run.v1.PartyTable.rows",
         "run.v1.PartyTable.features"),
        "any time",
    )  # fmt: skip
    yield Statement(
        COORDINATOR, "losses and scores to its own clients, never to parties", ("run.v1.Metric.value",), "any time"
    )
    if vertical:  # elsewhere every party has the whole model
        yield Statement(
            COORDINATOR,
            "the ids of rows to predict, if somebody asks for a prediction by id, to all parties, and scores to the "
            "client; for a whole table nobody sends ids to the coordinator, which names rows by its own labels or by "
            "number",
            ("party.v1.OpenSessionRequest.ids", "run.v1.PredictRequest.ids",
             "run.v1.PredictResponse.ids", "run.v1.PredictResponse.scores", "run.v1.PredictResponse.classes"),
            "prediction",
        )  # fmt: skip
