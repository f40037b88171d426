"""What can leave in BAMBI: one entry for each field of its messages."""

from collections.abc import Iterator

from parley.privacy.manifest import LABEL_PRIVACY, SECURE_SUM, Entry, control, derived
from parley.protocols.bambi.settings import BambiSpec
from parley.protocols.statements import COORDINATOR, PARTIES, Statement, addends, label_noise, only_the_sum
from parley.spec.run import RunSpec

CROSSINGS: tuple[Entry, ...] = (
    derived("bambi.v1.Embedding.sum", "features, x_m, y_m", SECURE_SUM, "coordinator: the sum over all parties"),
    derived(
        "bambi.v1.DirectionalShare.sum",
        "features, x_m, y_m",
        SECURE_SUM,
        "coordinator: the sum of one scalar per direction",
    ),
    derived("bambi.v1.CurvatureShare.sum", "features, x_m, y_m", SECURE_SUM, "coordinator: the sum over all parties"),
    derived("bambi.v1.IntermediateGradient.theta", "labels and the summed embedding", LABEL_PRIVACY, "all parties"),
    derived("bambi.v1.IntermediateGradient.vartheta", "labels and the summed embedding", LABEL_PRIVACY, "all parties"),
    derived(
        "bambi.v1.IntermediateGradient.step_length", "noisy labels that were paid for", "post-processing", "all parties"
    ),
    derived("bambi.v1.Coefficients.values", "sums over all parties", "only sums reach the coordinator", "all parties"),
    derived(
        "bambi.v1.CurvatureStep.product",
        "sums over all parties; no label, or (problem: own) noisy labels that were paid for",
        "only sums reach the coordinator; post-processing",
        "all parties",
    ),
    derived(
        "bambi.v1.CurvatureStep.alpha",
        "sums over all parties; no label, or (problem: own) noisy labels that were paid for",
        "only sums reach the coordinator; post-processing",
        "all parties",
    ),
    derived(
        "bambi.v1.CurvatureStep.beta",
        "sums over all parties; no label, or (problem: own) noisy labels that were paid for",
        "only sums reach the coordinator; post-processing",
        "all parties",
    ),
    derived(
        "bambi.v1.CurvatureStep.solution_product",
        "sums over all parties; no label, or (problem: own) noisy labels that were paid for",
        "only sums reach the coordinator; post-processing",
        "all parties",
    ),
    derived("bambi.v1.CurvatureStep.upper_scale", "noisy labels that were paid for", "post-processing", "all parties"),
    derived(
        "bambi.v1.LocalWork.logits",
        "sums over all parties, and noisy labels that were paid for",
        "only sums reach the coordinator",
        "all parties",
    ),
    derived("bambi.v1.LocalWork.classes", "labels", LABEL_PRIVACY, "all parties"),
    derived("bambi.v1.LocalWork.target", "labels", LABEL_PRIVACY, "all parties"),
    derived("bambi.v1.LocalWork.steps", "noisy labels that were paid for", "post-processing", "all parties"),
    derived("bambi.v1.LocalWork.weights", "noisy labels that were paid for", "post-processing", "all parties"),
    derived("bambi.v1.LocalWork.step_scale", "noisy labels that were paid for", "post-processing", "all parties"),
    *control(
        "bambi.v1.Instruction",
        "round gradient coefficients curvature local_work lower_forward upper_forward "
        "directional_forward curvature_forward local_forward rows_forward checkpoint finish",
        "all parties",
    ),
    *control("bambi.v1.LocalForward", "k batch", "all parties"),
    *control("bambi.v1.LowerForward", "k t", "all parties"),
    *control("bambi.v1.UpperForward", "k", "all parties"),
    *control("bambi.v1.DirectionalForward", "k", "all parties"),
    *control("bambi.v1.CurvatureForward", "k system iteration", "all parties"),
    *control("bambi.v1.RowsForward", "rows first count", "all parties"),
    *control("bambi.v1.Checkpoint", "k", "all parties"),
    *control("bambi.v1.Contribution", "round embedding directional curvature acknowledgement", "coordinator"),
    *control("party.v1.ExchangeRequest", "bambi", "all parties"),
    *control("party.v1.ExchangeResponse", "bambi", "coordinator"),
)


def statements(spec: RunSpec) -> Iterator[Statement]:
    """What leaves in one run."""
    train, hidden = spec.settings(BambiSpec), only_the_sum(spec)
    yield Statement(
        PARTIES,
        f"its part of the scores of every row of every batch, {hidden}. {_of_features(spec)}",
        ("bambi.v1.Embedding.sum", *addends(spec)),
    )
    if train.hypergradient == "local":
        yield Statement(
            COORDINATOR,
            "that sum and the noisy label of every row of a batch to all parties, and how far to go before the next "
            f"exchange. {label_noise(spec)}",
            tuple(
                f"bambi.v1.LocalWork.{name}"
                for name in ("logits", "classes", "target", "steps", "weights", "step_scale")
            ),
        )
        return
    yield Statement(
        COORDINATOR,
        f"the gradient of the loss at that sum to all parties. {label_noise(spec)}",
        tuple(f"bambi.v1.IntermediateGradient.{name}" for name in ("theta", "vartheta", "step_length")),
    )
    if train.own is not None and train.own.attribute is not None:
        yield Statement(
            COORDINATOR,
            f"in the same gradients and curvature, each row's {train.own.attribute}, noised as labels are and paid for "
            "by an account of its own",
            ("bambi.v1.IntermediateGradient.theta", "bambi.v1.IntermediateGradient.vartheta"),
        )
    if train.hypergradient == "implicit":
        in_it = "no label" if train.own is None or train.own.label_side is None else "the same noisy labels"
        yield Statement(
            PARTIES,
            f"its part of products with the curvature, which solve for the hyper-gradient, {hidden}",
            ("bambi.v1.CurvatureShare.sum",),
        )
        yield Statement(
            COORDINATOR,
            f"the curvature at these sums back to all parties, with {in_it} in it; and how far x may move, which the "
            "noisy labels tell",
            tuple(
                f"bambi.v1.CurvatureStep.{name}"
                for name in ("product", "alpha", "beta", "solution_product", "upper_scale")
            ),
        )
    if train.hypergradient == "zeroth_order":
        count = train.zeroth_order.directions
        yield Statement(
            PARTIES,
            f"its part of {'one number' if count == 1 else f'{count} numbers, one for each direction,'} in each upper "
            f"iteration, {hidden}",
            ("bambi.v1.DirectionalShare.sum",),
        )
        yield Statement(COORDINATOR, "these sums back to all parties", ("bambi.v1.Coefficients.values",))
    if train.problem == "hyper_parameters":
        yield Statement(
            PARTIES,
            "the coefficients that were tuned, to three digits, as far as its policy shares them: one number for the "
            "whole party, one for each named column, or nothing",
            ("party.v1.TunedCoefficient.value", "party.v1.TunedCoefficient.column"),
            "any time",
        )


def _of_features(spec: RunSpec) -> str:
    """What sums tell of the columns behind them."""
    features = spec.privacy.features
    if features.kind == "none":
        return "Sums of many rounds over the same rows can confirm or exclude a guessed column"
    return f"Rows are noised, so that all sums tell of one no more than ε = {features.epsilon:g} allows"
