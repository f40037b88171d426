"""Class weights for imbalance: those under which the fitted model does equally well on rare classes."""

import torch

from parley.numerics.own_problem import Batch, Sizes, Variables


class ClassWeights:
    """Runs at the label holder."""

    def __init__(self, sizes: Sizes) -> None:
        self._names = sizes.classes
        self._count = max(2, sizes.outputs)

    def variables(self) -> dict[str, torch.Tensor]:
        """Log weights; equal ones to begin with."""
        return {"weights": torch.zeros(self._count, dtype=torch.float64)}

    def lower(self, variables: Variables, batch: Batch) -> torch.Tensor:
        """The loss, each row with the weight of its class."""
        weights = self._count * torch.softmax(variables["weights"], dim=0)
        return (self._classes(batch) * weights * self._row_losses(batch)).sum() / len(batch.h)

    def upper(self, variables: Variables, batch: Batch) -> torch.Tensor:  # noqa: ARG002 (weights are for the lower one)
        """The mean over classes of their mean losses."""
        members = self._classes(batch)
        counts = members.sum(dim=0).clamp_min(1.0)
        return ((members * self._row_losses(batch)).sum(dim=0) / counts).mean()

    def figures(self, variables: Variables, batch: Batch) -> dict[str, float]:  # noqa: ARG002 (of all batches)
        """The weights by class."""
        weights = self._count * torch.softmax(variables["weights"], dim=0)
        names = self._names or tuple(map(str, range(self._count)))
        return {f"weight of {name}": float(weight) for name, weight in zip(names, weights, strict=True)}

    def _classes(self, batch: Batch) -> torch.Tensor:
        """Membership of each class, (rows, classes)."""
        one = batch.target.shape[1] == 1
        return torch.cat([1 - batch.target, batch.target], dim=1) if one else batch.target

    def _row_losses(self, batch: Batch) -> torch.Tensor:
        """−log p of each class, (rows, classes)."""
        h = torch.cat([torch.zeros_like(batch.h), batch.h], dim=1) if batch.h.shape[1] == 1 else batch.h
        return -torch.log_softmax(h, dim=1)
