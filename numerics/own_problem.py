"""A bilevel problem of one's own, as plain torch functions, and every derivative that a run asks of them.

The label holder's side has upper variables w and two objectives of the summed embedding h; a party's side has upper
variables x_m, an embedding of its features and, if it wants, coefficients of ‖y_m‖² and an upper term of its own:

    lower   min over y   l(w; h) + Σ_m Σ ρ_m(x_m) y_m²,    h = Σ_m S_m(x_m) y_m
    upper   min over w, x_m   u(w; h) + Σ_m r_m(x_m)

    code                     what                              from
    gradient("lower", …)     ∂l/∂h, goes to the parties        Eq. of the lower gradient, θ
    product(…, a)            ∂²l/∂h² a, goes to the parties    systems with the lower Hessian
    direct(…)                ∂u/∂w                             the direct term of w
    cross(…, a)              ∂²l/∂w∂h a with a = Σ_m S_m v_m   the indirect term of w; v solves H v = ∇_y u

Arrays in, arrays out; all in float64. What a function is handed of labels is what the gate let out.
"""

import importlib
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from parley.numerics.arrays import Array, Vector
from parley.numerics.losses import Loss, unbiased_target
from parley.numerics.problem_errors import ProblemImportRefused, ProblemMisshapen, ProblemNotFinite

Variables = Mapping[str, Tensor]
LevelName = Literal["lower", "upper"]
Option = bool | int | float | str

SHIPPED = "parley.numerics.problems."
"""Modules whose problems need no permission: they came with the service."""
PROBED_ROWS = 8


class Sizes(NamedTuple):
    """What the label holder's side knows before it starts."""

    rows: int
    """Rows that the parties have in common."""
    outputs: int
    """Columns of h."""
    classes: tuple[str, ...] = ()
    """Names of the classes; none for a regression."""
    groups: tuple[str, ...] = ()
    """Values of the attribute, where the run names one."""


class Batch(NamedTuple):
    """What the label holder's functions are given."""

    h: Tensor
    """(rows, outputs): the sum of the parties' embeddings, of which l must be a convex function."""
    target: Tensor
    """(rows, outputs): an unbiased estimate of the true target rows; those themselves where labels carry no noise."""
    losses: Tensor
    """(rows,): the run's own loss of each row at that target."""
    rows: Tensor
    """(rows,): the number of each row, 0 … Sizes.rows − 1."""
    attribute: Tensor
    """(rows, groups): the same for the attribute that the run names; (rows, 0) where it names none."""


@dataclass(frozen=True, eq=False)
class Given:
    """The same as arrays."""

    h: Array
    target: Array
    rows: Array
    attribute: Array

    def at(self, h: Array) -> "Given":
        """The same batch at another h."""
        return Given(h, self.target, self.rows, self.attribute)


def import_allowed(path: str, allowed: Collection[str], where: str) -> Callable[..., Any]:
    """What a path names, if it may be imported here: importing runs code."""
    if path not in allowed and not path.startswith(SHIPPED):
        raise ProblemImportRefused(f"This {where} does not allow problems from {path!r}: its owner may list it.")
    module_name, _, name = path.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), name)
    except (ImportError, AttributeError) as error:
        raise ProblemImportRefused(
            f"{path!r} cannot be imported ({error}): install the package beside the {where}."
        ) from error
    if not callable(found):
        raise ProblemMisshapen(
            f"{path!r} is a {type(found).__name__}: name a class, or a function that makes a problem."
        )
    return found  # type: ignore[no-any-return]


def make(path: str, options: Mapping[str, Option], first: object, allowed: Collection[str], where: str) -> Any:
    """A problem, or a party's side of one."""
    factory = import_allowed(path, allowed, where)
    try:
        inspect.signature(factory).bind(first, **options)
    except TypeError as error:
        raise ProblemMisshapen(f"{path!r} does not take what the run gives it ({error}): correct `options`.") from error
    return factory(first, **options)


@dataclass(frozen=True)
class Layout:
    """How named variables lie in one vector."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, path: str, variables: object) -> "tuple[Layout, Vector]":
        """The layout of a problem's first variables, and these as a vector."""
        if not isinstance(variables, Mapping) or not all(isinstance(each, Tensor) for each in variables.values()):
            raise ProblemMisshapen(f"{path}: variables() must return a dictionary of tensors.")
        parts = [each.detach().to(torch.float64).reshape(-1) for each in variables.values()]
        flat = torch.cat([torch.empty(0, dtype=torch.float64), *parts]).numpy()
        if not np.isfinite(flat).all():
            raise ProblemMisshapen(f"{path}: variables() must return finite numbers.")
        return cls(tuple(map(str, variables)), tuple(tuple(each.shape) for each in variables.values())), flat

    def named(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of a vector."""
        parts = torch.split(flat, [int(np.prod(shape)) for shape in self.shapes])
        return {name: part.reshape(shape) for name, shape, part in zip(self.names, self.shapes, parts, strict=True)}

    def arrays(self, flat: Vector) -> dict[str, Array]:
        """The same of an array."""
        return {name: tensor.numpy() for name, tensor in self.named(torch.from_numpy(flat)).items()}


@dataclass(frozen=True, eq=False)
class LabelProblem:
    """The label holder's side: two objectives, and the variables that they share."""

    path: str
    made: Any
    layout: Layout
    initial: Vector
    loss: Loss
    """The run's loss, as fits the noise of the labels; says what a target row is an estimate of."""

    @classmethod
    def load(
        cls, path: str, options: Mapping[str, Option], sizes: Sizes, loss: Loss, allowed: Collection[str]
    ) -> "LabelProblem":
        """Import a problem and try it on made-up numbers, so that what is wrong with it shows before a run.

        Raises:
            ProblemImportRefused: if the path is not allowed, or not there.
            ProblemMisshapen: if it does not return what it must, or not the same twice, or is not differentiable.
        """
        made = make(path, options, sizes, allowed, "coordinator")
        for name in ("variables", "lower", "upper"):
            if not callable(getattr(made, name, None)):
                raise ProblemMisshapen(f"{path} has no method {name}(): a problem has variables, lower and upper.")
        layout, initial = Layout.of(path, _called(path, "variables", made.variables))
        problem = cls(path, made, layout, initial, loss)
        problem._probe(sizes)
        return problem

    def value(self, level: LevelName, w: Vector, given: Given) -> float:
        """l or u."""
        with torch.no_grad():
            return float(self._objective(level, torch.from_numpy(w), torch.from_numpy(_wide(given.h)), given))

    def gradient(self, level: LevelName, w: Vector, given: Given) -> Array:
        """The derivative by h."""
        h = torch.from_numpy(_wide(given.h)).requires_grad_()
        (found,) = _derive(self._objective(level, torch.from_numpy(w), h, given), (h,))
        return self._finite(level, found.numpy())

    def product(self, w: Vector, given: Given, a: Array) -> Array:
        """∂²l/∂h² a."""
        h = torch.from_numpy(_wide(given.h)).requires_grad_()
        (slope,) = _derive(self._objective("lower", torch.from_numpy(w), h, given), (h,), again=True)
        if not slope.requires_grad:  # l is linear in h
            return np.zeros_like(_wide(a))
        (found,) = _derive((slope * torch.from_numpy(_wide(a))).sum(), (h,))
        return self._finite("lower", found.numpy())

    def direct(self, w: Vector, given: Given) -> Vector:
        """∂u/∂w at a fixed h."""
        leaf = torch.from_numpy(w).clone().requires_grad_()
        objective = self._objective("upper", leaf, torch.from_numpy(_wide(given.h)), given)
        if not objective.requires_grad:
            return np.zeros_like(w)
        return self._finite("upper", _derive(objective, (leaf,))[0].numpy())

    def cross(self, w: Vector, given: Given, a: Array) -> Vector:
        """∂²l/∂w∂h a."""
        leaf, h = torch.from_numpy(w).clone().requires_grad_(), torch.from_numpy(_wide(given.h)).requires_grad_()
        (slope,) = _derive(self._objective("lower", leaf, h, given), (h,), again=True)
        if not slope.requires_grad:
            return np.zeros_like(w)
        return self._finite("lower", _derive((slope * torch.from_numpy(_wide(a))).sum(), (leaf,))[0].numpy())

    def figures(self, w: Vector, given: Given) -> dict[str, float]:
        """What the problem tells of itself, if it does."""
        tell = getattr(self.made, "figures", None)
        if tell is None:
            return {}
        with torch.no_grad():
            found = _called(self.path, "figures", tell, self.layout.named(torch.from_numpy(w)), self._batch(given))
        return {str(name): float(value) for name, value in dict(found).items()}

    def _objective(self, level: LevelName, w: Tensor, h: Tensor, given: Given) -> Tensor:
        function = self.made.lower if level == "lower" else self.made.upper
        found = _called(self.path, level, function, self.layout.named(w), self._batch(given, h))
        if not isinstance(found, Tensor) or found.numel() != 1:
            raise ProblemMisshapen(f"{self.path}: {level}() must return one number as a tensor, not {_told(found)}.")
        if not bool(torch.isfinite(found).all()):
            raise ProblemNotFinite(
                f"{self.path}: {level}() has become infinite or undefined: keep its logarithms and quotients away "
                "from 0, or lower the step sizes"
            )
        return found.reshape(())

    def _batch(self, given: Given, h: Tensor | None = None) -> Batch:
        h = torch.from_numpy(_wide(given.h)) if h is None else h
        target = torch.from_numpy(_wide(unbiased_target(self.loss, given.target)))
        return Batch(
            h,
            target,
            _row_losses(self.loss, h, target),
            torch.from_numpy(np.asarray(given.rows, np.int64)),
            torch.from_numpy(_wide(given.attribute)),
        )

    def _finite(self, level: str, found: Array) -> Array:
        if not np.isfinite(found).all():
            raise ProblemNotFinite(
                f"{self.path}: the derivative of {level}() has become infinite or undefined: keep roots, logarithms "
                "and quotients away from 0"
            )
        return found

    def _probe(self, sizes: Sizes) -> None:
        """Everything once, on made-up numbers."""
        draw, count = np.random.default_rng(0), min(PROBED_ROWS, sizes.rows)
        target = np.eye(max(sizes.outputs, 2))[np.arange(count) % max(sizes.outputs, 2)][:, : sizes.outputs]
        groups = (
            np.eye(len(sizes.groups))[np.arange(count) % len(sizes.groups)] if sizes.groups else np.empty((count, 0))
        )
        given = Given(draw.standard_normal((count, sizes.outputs)), target, np.arange(count), groups)
        try:
            slopes = {level: self.gradient(level, self.initial, given) for level in ("lower", "upper")}
            twice = self.gradient("lower", self.initial, given)
            self.product(self.initial, given, given.h)
            moved = self.cross(self.initial, given, given.h), self.direct(self.initial, given)
            self.figures(self.initial, given)
        except ProblemNotFinite as error:
            raise ProblemMisshapen(f"Tried on made-up numbers, {error}.") from error
        if not np.array_equal(slopes["lower"], twice):
            raise ProblemMisshapen(
                f"{self.path}: lower() gives other numbers when it is asked again: leave randomness out."
            )
        for level, slope in slopes.items():
            if not slope.any():
                raise ProblemMisshapen(
                    f"{self.path}: {level}() is not differentiable by batch.h, or does not depend on it: compute it "
                    "from batch.h or batch.losses with torch, without detach(), round() or numpy()."
                )
        if len(self.initial) and not moved[0].any() and not moved[1].any():
            raise ProblemMisshapen(
                f"{self.path}: neither lower() nor upper() is differentiable by the variables: nothing to learn."
            )


def _derive(value: Tensor, leaves: tuple[Tensor, ...], *, again: bool = False) -> tuple[Tensor, ...]:
    """Gradients, zero where nothing depends on a leaf."""
    if not value.requires_grad:
        return tuple(torch.zeros_like(leaf) for leaf in leaves)
    return torch.autograd.grad(value, leaves, create_graph=again, allow_unused=True, materialize_grads=True)


def _called(path: str, name: str, function: Callable[..., Any], *given: object) -> Any:
    try:
        inspect.signature(function).bind(*given)
    except TypeError as error:
        raise ProblemMisshapen(f"{path}: {name}() must take {len(given)} arguments after self ({error}).") from error
    try:
        return function(*given)
    except (RuntimeError, IndexError, KeyError, TypeError, AttributeError) as error:
        raise ProblemMisshapen(f"{path}: {name}() fails: {error}") from error


def _row_losses(loss: Loss, h: Tensor, target: Tensor) -> Tensor:
    """The loss of exact labels at target rows that are unbiased: so are the losses, since they are linear in those."""
    if loss.accuracy_name == "r2":
        return 0.5 * (h - target).square().sum(dim=1)
    if h.shape[1] == 1:
        return (torch.nn.functional.softplus(h) - target * h).sum(dim=1)
    return -(target * torch.log_softmax(h, dim=1)).sum(dim=1)


def _wide(array: Array) -> Array:
    return np.ascontiguousarray(array, dtype=np.float64)


def _told(value: object) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
