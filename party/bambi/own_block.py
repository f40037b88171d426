"""A party's side of a problem of one's own: an embedding, coefficients of ‖y‖², and an upper term, as torch functions.

All three are functions of this party's upper variables x_m alone (and the embedding of its features), so nothing of
them crosses but what every embedding adds to a sum.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from parley.numerics.arrays import Array
from parley.numerics.own_problem import Layout, Option, make
from parley.numerics.problem_errors import ProblemMisshapen, ProblemNotFinite
from parley.party.bambi.models import EmbeddingModel, Parameter

PROBED_ROWS = 4


@dataclass(frozen=True)
class OwnBlock(EmbeddingModel):
    """The embedding and what else the party adds."""

    kind: ClassVar[str] = "own"
    path: str = field(kw_only=True)
    made: Any = field(kw_only=True)
    first: tuple[float, ...] = field(kw_only=True)
    """Variables before the first step."""
    intercept: bool = field(kw_only=True)
    """Whether the embedding gets a column of ones."""

    def initial(self, generator: np.random.Generator) -> Tensor:  # noqa: ARG002 (the problem says where it begins)
        """What the problem says."""
        return torch.tensor(self.first, dtype=self.dtype)

    def _forward(self, weights: Mapping[str, Tensor], a: Tensor) -> Tensor:
        s = self.made.embed(dict(weights), a)
        if not isinstance(s, Tensor) or s.shape != (len(a), self.out - self.intercept) or s.dtype != a.dtype:
            raise ProblemMisshapen(
                f"{self.path}: embed() must return {self.out - self.intercept} columns for each row (its `out`), in "
                "the features' type"
            )
        return torch.cat([s, torch.ones_like(s[:, :1])], dim=1) if self.intercept else s

    def _forward_stack(self, weights: Mapping[str, Tensor], a: Tensor) -> Tensor:
        stacked: Tensor = torch.func.vmap(lambda one: self._forward(one, a))(dict(weights))
        return stacked

    def penalty(self, x: Tensor, default: float) -> Tensor:
        """Coefficients of y², (out, 1); differentiable in x."""
        own = getattr(self.made, "regularisation", None)
        found = torch.as_tensor(default if own is None else own(self._tensors(x)), dtype=self.dtype)
        columns = self.out - self.intercept
        if found.numel() not in (1, columns):
            raise ProblemMisshapen(f"{self.path}: regularisation() must return one number, or {columns}")
        spread = found.reshape(-1).expand(columns)
        if self.intercept:
            spread = torch.cat([spread, spread.new_full((1,), default)])
        return spread[:, None]

    def penalties(self, points: Tensor, default: float) -> Array:
        """The same at one x, or at each of a stack."""
        with torch.no_grad():
            if points.ndim == 1:
                found = self.penalty(points, default)
            else:
                found = torch.stack([self.penalty(x, default) for x in points])
        if not bool((torch.isfinite(found) & (found > 0)).all()):
            raise ProblemNotFinite(f"{self.path}: regularisation() must stay positive and finite")
        return found.numpy()

    def upper_gradient(self, x: Tensor) -> Tensor:
        """Of the term that this party adds to the upper objective."""
        own, leaf = getattr(self.made, "upper", None), x.detach().clone().requires_grad_()
        if own is None:
            return torch.zeros_like(x)
        value = own(self._tensors(leaf))
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise ProblemMisshapen(f"{self.path}: upper() must return one number as a tensor")
        if not value.requires_grad:
            return torch.zeros_like(x)
        (found,) = torch.autograd.grad(value.reshape(()), leaf, allow_unused=True, materialize_grads=True)
        if not bool(torch.isfinite(found).all()):
            raise ProblemNotFinite(f"{self.path}: the derivative of upper() has become infinite or undefined")
        return found


def load_block(
    path: str,
    options: Mapping[str, Option],
    features: int,
    dtype: torch.dtype,
    allowed: Collection[str],
    *,
    intercept: bool,
) -> OwnBlock:
    """Import a party's side and try it on made-up numbers, not on the party's own.

    Raises:
        ProblemImportRefused: if the path is not allowed, or not there.
        ProblemMisshapen: if it does not return what it must, or not the same twice, or is not differentiable.
    """
    made = make(path, options, features, allowed, "party")
    out = getattr(made, "out", None)
    if not callable(getattr(made, "embed", None)) or not callable(getattr(made, "variables", None)):
        raise ProblemMisshapen(f"{path}: a party's side has variables() and embed(variables, features)")
    if not isinstance(out, int) or out < 1:
        raise ProblemMisshapen(f"{path}: `out` must be the number of columns that embed() returns, not {out!r}")
    layout, first = Layout.of(path, made.variables())
    parameters = tuple(Parameter(name, shape, 0.0) for name, shape in zip(layout.names, layout.shapes, strict=True))
    block = OwnBlock(
        features,
        out + intercept,
        parameters,
        dtype,
        path=path,
        made=made,
        first=tuple(first.tolist()),
        intercept=intercept,
    )
    _probe(block)
    return block


def _probe(block: OwnBlock) -> None:
    draw = torch.Generator().manual_seed(0)
    a = torch.randn((PROBED_ROWS, block.features), generator=draw, dtype=torch.float64).to(block.dtype)
    x = block.initial(np.random.default_rng(0)).requires_grad_()
    try:
        s = block.apply(x, a)
        penalty = block.penalty(x, 1.0)
        if not torch.equal(s, block.apply(x, a)):
            raise ProblemMisshapen(f"{block.path}: embed() gives other numbers when it is asked again")
        block.penalties(x.detach(), 1.0)
        slopes = [block.upper_gradient(x)]
        for value in (s.sum(), s.square().sum(), penalty.sum()):
            if value.requires_grad:
                slopes += torch.autograd.grad(value, x, allow_unused=True, materialize_grads=True, retain_graph=True)
    except (RuntimeError, TypeError, KeyError, IndexError, AttributeError) as error:
        raise ProblemMisshapen(f"{block.path} fails on made-up numbers: {error}") from error
    except ProblemNotFinite as error:
        raise ProblemMisshapen(f"Tried on made-up numbers, {error}.") from error
    if not all(bool(torch.isfinite(each).all()) for each in (s, *slopes)):
        raise ProblemMisshapen(f"{block.path}: embed(), or a derivative, is not finite on made-up numbers")
    if len(x) and not any(bool(each.any()) for each in slopes):
        raise ProblemMisshapen(
            f"{block.path} is not differentiable by its variables: compute with torch, without detach()"
        )
