"""A problem of one's own at the label holder: its upper variables w, and how they follow the hyper-gradient.

The solution v of the adjoint system is spread over the parties, but Σ_m S_m v_m is known here, since it is a sum of
theirs; so w gets its hyper-gradient ∂u/∂w − ∂²l/∂w∂h Σ_m S_m v_m without a round of its own. In zeroth order w is
perturbed with everyone's x, along directions of its own, and the same sums s_j tell how u changed.

Imported only where a run has such a problem: it needs torch, which is not part of a coordinator's image.
"""

import io
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from parley.numerics.arrays import Array, Vector
from parley.numerics.optimisers import Moments, clipped, move, schedule_of
from parley.numerics.own_problem import Given, LabelProblem, LevelName
from parley.numerics.streams import directions
from parley.protocols.bambi.settings import BambiSpec
from parley.spec.rows import Rows

NAMED = "variable "
"""What the names of variables begin with in a checkpoint, for those who read it."""


class Attributes(Protocol):
    """The gate to an attribute of the rows."""

    def target(self, release: int, rows: Rows) -> Array:
        """Noisy attributes of a release, paid for before they are returned."""


class NotConvex(ArithmeticError):
    """The lower objective curves downwards: it has no solution to differentiate."""


@dataclass(frozen=True)
class Upper:
    """The upper variables and what their optimiser remembers."""

    w: Vector
    moments: Moments[Vector]


class OwnProblem:
    """The problem of one run; its variables change with every upper iteration."""

    def __init__(
        self, problem: LabelProblem, settings: BambiSpec, seed: int, attributes: Attributes | None = None
    ) -> None:
        self._problem, self._settings, self._seed, self._attributes = problem, settings, seed, attributes
        self._direct: Vector = np.zeros_like(problem.initial)
        self._given: dict[LevelName, Given] = {}
        self.begin()

    def begin(self) -> None:
        """Before the first iteration."""
        self.upper = Upper(self._problem.initial, Moments.zeros(self._problem.initial))

    def level(self, name: LevelName, k: int, rows: Rows, target: Array, release: int) -> "OwnLevel":
        """The objective of a level on a batch, at the present variables."""
        attributes = np.empty((len(rows), 0))
        if self._attributes is not None:
            attributes = self._attributes.target(release, rows)
        given = self._given[name] = Given(np.empty((len(rows), 0)), target, rows, attributes)
        paths = self.upper.w[None]
        zeroth = self._settings.hypergradient == "zeroth_order"
        if name == "lower" and zeroth and 1 <= k <= self._settings.upper.steps:
            paths = np.concatenate([paths, paths + self._settings.zeroth_order.smoothing * self._directions(k)])
        return OwnLevel(self._problem, name, given, paths, release)

    def upper_seen(self, h: Array) -> dict[str, float]:
        """Note the direct term on the last upper batch; returns what the problem tells of itself."""
        given = self._given["upper"].at(h)
        self._direct = self._problem.direct(self.upper.w, given)
        return self._problem.figures(self.upper.w, given)

    def implicit_step(self, k: int, h: Array, solution: Array, scale: float) -> None:
        """`h` is that of the last lower batch, `solution` is Σ_m S_m v_m there."""
        cross = self._problem.cross(self.upper.w, self._given["lower"].at(h), solution)
        self._step(k, self._direct - cross, scale)

    def zeroth_order_step(self, k: int, coefficients: Vector) -> None:
        """`coefficients` are s_j, summed over all parties."""
        if len(self.upper.w):
            self._step(k, self._direct + np.asarray(coefficients) @ self._directions(k) / len(coefficients))

    def encoded(self) -> bytes:
        """For a checkpoint."""
        file = io.BytesIO()
        moments = self.upper.moments
        named = {f"{NAMED}{name}": value for name, value in self._problem.layout.arrays(self.upper.w).items()}
        numbers = {"w": self.upper.w, "first": moments.first, "second": moments.second} | named
        np.savez(file, allow_pickle=False, count=moments.count, **numbers)
        return file.getvalue()

    def restore(self, content: bytes) -> None:
        """From a checkpoint."""
        with np.load(io.BytesIO(content), allow_pickle=False) as kept:
            moments = Moments(kept["first"], kept["second"], int(kept["count"]))
            self.upper = Upper(kept["w"], moments)

    def _directions(self, k: int) -> Array:
        zeroth, size = self._settings.zeroth_order, len(self.upper.w)
        if not size:
            return np.empty((zeroth.directions, 0))
        return directions(self._seed, k, zeroth.directions, size, zeroth.kind, name="directions/label side")

    def _step(self, k: int, hypergradient: Vector, scale: float = 1.0) -> None:
        optimiser = self._settings.own_optimiser
        size = scale * schedule_of(optimiser, k, self._settings.upper.steps)
        w, moments = move(self.upper.w, clipped(hypergradient, optimiser.clip), self.upper.moments, optimiser, size)
        self.upper = Upper(w, moments)


@dataclass(frozen=True, eq=False)
class OwnLevel:
    """A level of the problem on one batch."""

    problem: LabelProblem
    name: LevelName
    given: Given
    paths: Array
    """w, and where it is perturbed."""
    release: int
    """The curvature of one's own objective may have labels in it: it leaves as what the release has paid for."""
    floor: float = 0.0

    def value(self, h: Array) -> float:
        """The objective."""
        return self.problem.value(self.name, self.paths[0], self.given.at(h if h.ndim == 2 else h[0]))

    def gradient(self, h: Array) -> Array:
        """Its derivative by h, along every trajectory at that trajectory's w."""
        if h.ndim == 2:
            return self._like(h, self.problem.gradient(self.name, self.paths[0], self.given.at(h)))
        paths = self.paths if len(self.paths) == len(h) else np.repeat(self.paths[:1], len(h), 0)
        found = [self.problem.gradient(self.name, w, self.given.at(each)) for w, each in zip(paths, h, strict=True)]
        return self._like(h, np.stack(found))

    def curvature_product(self, h: Array, a: Array) -> Array:
        """Its second derivative by h, times a."""
        found = self.problem.product(self.paths[0], self.given.at(h), a)
        if float(np.vdot(a, found)) < -1e-9 * (float(np.vdot(a, a)) + 1e-30):
            raise NotConvex(
                f"{self.problem.path}: lower() curves downwards in batch.h, so it has no minimum to differentiate: "
                "keep weights positive; under label noise take more rows (`train.lower.batch`) or a larger ε"
            )
        return self._like(h, found)

    def _like(self, h: Array, found: Array) -> Array:
        return found.astype(h.dtype, copy=False)
