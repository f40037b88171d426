"""A fairness constraint as the upper problem: weights of cells (group by class) under which groups get equal scores.

The lower model is fitted to weighted rows; the upper objective is the loss plus a price on the squared gap between the
mean scores of groups (`demographic_parity`), or between those of the last class's members (`equal_opportunity`). The
groups are an attribute that the label holder keeps, noised as labels are; no party learns it otherwise.
"""

from typing import Literal

import torch

from parley.numerics.own_problem import Batch, Sizes, Variables
from parley.numerics.problem_errors import ProblemMisshapen


class FairScores:
    """Runs at the label holder."""

    def __init__(
        self,
        sizes: Sizes,
        *,
        price: float = 10.0,
        criterion: Literal["demographic_parity", "equal_opportunity"] = "demographic_parity",
    ) -> None:
        """`price` is λ of λ · gap²."""
        if len(sizes.groups) < 2:
            raise ProblemMisshapen("FairScores needs groups: name the label holder's table of them as `own.attribute`")
        self._groups, self._classes = sizes.groups, max(2, sizes.outputs)
        self._price, self._criterion = price, criterion

    def variables(self) -> dict[str, torch.Tensor]:
        """Log weights of cells."""
        return {"weights": torch.zeros(len(self._groups), self._classes, dtype=torch.float64)}

    def lower(self, variables: Variables, batch: Batch) -> torch.Tensor:
        """The loss, each row with the weight of its cell."""
        cells = torch.softmax(variables["weights"].reshape(-1), dim=0).reshape(variables["weights"].shape)
        weights = (batch.attribute @ (cells * cells.numel()) * _members(batch)).sum(dim=1)
        return (weights * batch.losses).mean()

    def upper(self, variables: Variables, batch: Batch) -> torch.Tensor:  # noqa: ARG002 (weights are for the lower one)
        """The loss and the price of the gaps."""
        means = self._mean_scores(batch)
        return batch.losses.mean() + self._price * (means - means.mean()).square().sum()

    def figures(self, variables: Variables, batch: Batch) -> dict[str, float]:  # noqa: ARG002 (of the scores)
        """The largest gap between groups on this batch."""
        means = self._mean_scores(batch)
        return {"gap between groups": float(means.max() - means.min())}

    def _mean_scores(self, batch: Batch) -> torch.Tensor:
        """Mean score of the last class by group."""
        h = batch.h
        scores = torch.sigmoid(h[:, 0]) if h.shape[1] == 1 else torch.softmax(h, dim=1)[:, -1]
        counted = batch.attribute
        if self._criterion == "equal_opportunity":
            counted = counted * batch.target[:, -1:]
        return (counted * scores[:, None]).sum(dim=0) / counted.sum(dim=0).clamp_min(1.0)


def _members(batch: Batch) -> torch.Tensor:
    one = batch.target.shape[1] == 1
    return torch.cat([1 - batch.target, batch.target], dim=1) if one else batch.target
