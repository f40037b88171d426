"""What can leave in BAMBI: one entry for each field of its messages."""

from parley.privacy.manifest import LABEL_PRIVACY, SECURE_SUM, Entry, control, derived

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
        "sums over all parties; no label",
        "only sums reach the coordinator",
        "all parties",
    ),
    derived(
        "bambi.v1.CurvatureStep.alpha",
        "sums over all parties; no label",
        "only sums reach the coordinator",
        "all parties",
    ),
    derived(
        "bambi.v1.CurvatureStep.beta",
        "sums over all parties; no label",
        "only sums reach the coordinator",
        "all parties",
    ),
    derived(
        "bambi.v1.CurvatureStep.solution_product",
        "sums over all parties; no label",
        "only sums reach the coordinator",
        "all parties",
    ),
    *control(
        "bambi.v1.Instruction",
        "round gradient coefficients curvature lower_forward upper_forward "
        "directional_forward curvature_forward rows_forward checkpoint finish",
        "all parties",
    ),
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
