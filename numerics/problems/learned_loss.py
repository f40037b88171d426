"""A loss that is learned: how much label smoothing, and which temperature, make a model whose plain loss is small."""

import torch

from parley.numerics.own_problem import Batch, Sizes, Variables
from parley.numerics.problem_errors import ProblemMisshapen


class LearnedLoss:
    """Runs at the label holder."""

    def __init__(self, sizes: Sizes, *, smoothing: float = 0.1, temperature: float = 1.0) -> None:
        """Where the search begins."""
        if not sizes.classes:
            raise ProblemMisshapen("LearnedLoss smooths classes: take `loss: softmax` or `loss: logistic`")
        self._start = (
            torch.logit(torch.tensor(smoothing, dtype=torch.float64)),
            torch.tensor(temperature).double().log(),
        )

    def variables(self) -> dict[str, torch.Tensor]:
        """Logit of the smoothing, logarithm of the temperature."""
        return {"smoothing": self._start[0], "temperature": self._start[1]}

    def lower(self, variables: Variables, batch: Batch) -> torch.Tensor:
        """Cross-entropy of h/T with smoothed labels."""
        part, h = torch.sigmoid(variables["smoothing"]), batch.h / variables["temperature"].exp()
        if h.shape[1] == 1:
            target = (1 - part) * batch.target + part / 2
            return (torch.nn.functional.softplus(h) - target * h).mean()
        target = (1 - part) * batch.target + part / h.shape[1]
        return -(target * torch.log_softmax(h, dim=1)).sum(dim=1).mean()

    def upper(self, variables: Variables, batch: Batch) -> torch.Tensor:  # noqa: ARG002 (the loss as it is)
        """The run's own loss."""
        return batch.losses.mean()

    def figures(self, variables: Variables, batch: Batch) -> dict[str, float]:  # noqa: ARG002 (of all batches)
        """What was learned."""
        return {
            "smoothing": float(torch.sigmoid(variables["smoothing"])),
            "temperature": float(variables["temperature"].exp()),
        }
