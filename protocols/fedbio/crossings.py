"""What can leave in the FedBiO family: one entry for each field of its messages."""

from collections.abc import Iterator

from parley.privacy.manifest import SECURE_SUM, Entry, control, derived
from parley.protocols.fedbio.settings import FedbioSpec
from parley.protocols.statements import COORDINATOR, PARTIES, Statement, addends, only_the_sum
from parley.spec.run import RunSpec

CROSSINGS: tuple[Entry, ...] = (
    derived(
        "fedbio.v1.LocalState.sum",
        "a client's rows, labels and model",
        SECURE_SUM,
        "coordinator: the sum over the clients",
    ),
    derived(
        "fedbio.v1.Measures.sum",
        "a client's losses, mistakes and numbers of rows",
        SECURE_SUM,
        "coordinator: the sum over the clients",
    ),
    derived(
        "fedbio.v1.Instruction.mean",
        "rows, labels and models of the participants",
        "an average of secure sums; nothing is added to it, but with record_privacy the parties' noise is in it",
        "all parties and the coordinator",
    ),
    *control("fedbio.v1.LocalState", "phase", "coordinator"),
    *control("fedbio.v1.SettledSum", "phase k participants further_participants", "coordinator"),
    *control("fedbio.v1.Instruction", "round phase k participants further_participants recovery", "the participants"),
    *control(
        "fedbio.v1.Contribution", "round state measures acknowledgement round_key shares disclosure", "coordinator"
    ),
    *control("party.v1.ExchangeRequest", "fedbio", "the participants"),
    *control("party.v1.ExchangeResponse", "fedbio", "coordinator"),
)


def statements(spec: RunSpec) -> Iterator[Statement]:
    """What leaves in one run."""
    hidden = only_the_sum(spec)
    yield Statement(
        PARTIES,
        f"its model and momenta after its local steps, {hidden}",
        ("fedbio.v1.LocalState.sum", *addends(spec)),
    )
    figures = ", AUC and other figures of its own rows" if spec.evaluation.averages else ""
    yield Statement(
        PARTIES, f"its losses, mistakes and numbers of rows{figures}, {hidden}", ("fedbio.v1.Measures.sum",)
    )
    records = spec.settings(FedbioSpec).record_privacy
    told = "Nothing is added to it: it can remember rows, as any model can"
    if records is not None:
        told = (
            f"It carries noise of the parties: over the run (ε, δ) = ({records.epsilon:g}, {records.delta:g}) a record"
        )
    yield Statement(
        COORDINATOR,
        f"the average of the models to all parties. {told}",
        ("fedbio.v1.Instruction.mean",),
    )
