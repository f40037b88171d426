"""Feature selection across parties: a gate for each column, with a price on every gate that stays open.

Each party multiplies its columns by σ(x) before the joint model is fitted to them; the upper objective is the loss on
rows that the model does not see, and each party adds a price for its own gates. A column that adds nothing to what all
parties have together is closed, whoever holds it. Gates stay with the party.
"""

import torch

from parley.numerics.own_problem import Variables


class FeatureGates:
    """Runs at each party."""

    def __init__(self, features: int, *, price: float = 0.01, start: float = 0.5) -> None:
        """`price` of an open gate, and how far gates are open before the first step."""
        self.out = features
        self._price, self._logit = price, float(torch.logit(torch.tensor(start, dtype=torch.float64)))

    def variables(self) -> dict[str, torch.Tensor]:
        """One logit for each column."""
        return {"gates": torch.full((self.out,), self._logit, dtype=torch.float64)}

    def embed(self, variables: Variables, features: torch.Tensor) -> torch.Tensor:
        """Columns behind their gates."""
        return features * torch.sigmoid(variables["gates"])

    def upper(self, variables: Variables) -> torch.Tensor:
        """The price of what is open."""
        return self._price * torch.sigmoid(variables["gates"]).sum()
