"""Sample weighting against label noise: rows whose label is wrong cost on rows that are known to be right.

One weight σ(w_i) for each row; a model is fitted to the weighted rows, and the weights to rows whose labels are trusted
(the upper rows). Rows that mislead the model lose their weight.
"""

import torch

from parley.numerics.own_problem import Batch, Sizes, Variables


class SampleWeights:
    """Runs at the label holder."""

    def __init__(self, sizes: Sizes, *, start: float = 0.5, prior: float = 0.0) -> None:
        """`start` is the weight of every row before the first step, `prior` how strongly weights are held there."""
        self._logit = float(torch.logit(torch.tensor(start, dtype=torch.float64)))
        self._rows, self._prior = sizes.rows, prior

    def variables(self) -> dict[str, torch.Tensor]:
        """One logit for each row."""
        return {"logits": torch.full((self._rows,), self._logit, dtype=torch.float64)}

    def lower(self, variables: Variables, batch: Batch) -> torch.Tensor:
        """The weighted loss."""
        return (torch.sigmoid(variables["logits"][batch.rows]) * batch.losses).mean()

    def upper(self, variables: Variables, batch: Batch) -> torch.Tensor:
        """The loss on trusted rows."""
        return batch.losses.mean() + self._prior * (variables["logits"] - self._logit).square().mean()

    def figures(self, variables: Variables, batch: Batch) -> dict[str, float]:  # noqa: ARG002 (of all rows)
        """How weights are spread."""
        weights = torch.sigmoid(variables["logits"])
        return {"mean weight": float(weights.mean()), "smallest weight": float(weights.min())}
