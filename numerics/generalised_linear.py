"""Generalised linear models: families, Fisher scoring, standard errors.

Nelder and Wedderburn, Generalized linear models (J. R. Statist. Soc. A 135, 1972); McCullagh and Nelder (1989), ch. 2.

    book     code            meaning
    η        eta             linear predictor, Zβ
    μ        mean(eta)       expectation of the response
    V(μ)     variance(eta)   its variance, up to the dispersion φ
    W        weights         (dμ/dη)²/V(μ), so that ZᵀWZ is the Fisher information at φ = 1
    D        deviance        twice the loss, less that of a model with a parameter for every row

The loss of a row is half its unit deviance, up to what does not depend on η: scikit-learn's, and glmnet's. A penalty is
½ βᵀPβ − βᵀl, so that whoever splits off a non-smooth part can put it there.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.special import expit, xlogy

from parley.numerics.arrays import Array, Vector

STEPS = 200
SHORTEST = 2.0**-30
CONVERGED = 1e-20
"""Newton decrement at which a fit has ended: coefficients are then right to about its root."""
STALLED = 1e-12
"""A decrement below this that makes the loss no smaller is the rounding of the loss."""
ROUNDING = 1e-15
SEPARATED = 1e-7
"""A mean loss of classes below this means that a plane tells them apart."""
LEVEL = 0.95
"""Of confidence intervals."""


class NoSolution(ArithmeticError):
    """The model has no finite coefficients, or none that could be found."""


class Family(Protocol):
    """A distribution with a link."""

    @property
    def estimates_dispersion(self) -> bool:
        """Whether φ is estimated; it is 1 otherwise."""

    def mean(self, eta: Array) -> Array:
        """μ of η."""

    def slope(self, eta: Array) -> Array:
        """dμ/dη."""

    def variance(self, eta: Array) -> Array:
        """V(μ(η))."""

    def losses(self, eta: Array, y: Array) -> Array:
        """The loss of each row."""

    def deviance(self, eta: Array, y: Array) -> float:
        """D."""

    def start(self, y: Array) -> float:
        """η of a model that has an intercept only."""


@dataclass(frozen=True)
class Classes:
    """Two classes with the logit link; labels may have been flipped with a known probability."""

    flip: float = 0.0
    """P(ỹ ≠ y): the model is of the true classes, whatever was flipped."""
    estimates_dispersion = False

    def mean(self, eta: Array) -> Array:
        """P(ỹ = 1)."""
        return np.asarray(self.flip + (1 - 2 * self.flip) * expit(eta))

    def slope(self, eta: Array) -> Array:
        """(1 − 2·flip) p(1−p)."""
        return np.asarray((1 - 2 * self.flip) * expit(eta) * expit(-eta))

    def variance(self, eta: Array) -> Array:
        """μ(1−μ), and never 0: it is divided by."""
        return np.asarray(np.maximum(self.mean(eta) * self.mean(-eta), np.finfo(np.float64).tiny))

    def losses(self, eta: Array, y: Array) -> Array:
        """Cross-entropy."""
        if not self.flip:
            return np.asarray(np.logaddexp(0.0, eta) - y * eta)
        return np.asarray(-xlogy(y, self.mean(eta)) - xlogy(1 - y, self.mean(-eta)))

    def deviance(self, eta: Array, y: Array) -> float:
        """Twice the cross-entropy: of single rows, the largest model has none."""
        return float(2 * self.losses(eta, y).sum())

    def start(self, y: Array) -> float:
        """The logit of the share of the second class, less what was flipped."""
        share = (float(y.mean()) - self.flip) / (1 - 2 * self.flip)
        share = min(max(share, 1e-3), 1 - 1e-3)
        return float(np.log(share / (1 - share)))


@dataclass(frozen=True)
class Numbers:
    """Numbers whose variance is μ^power: normal (0, identity link), Poisson (1), gamma (2) and between them (log)."""

    power: float

    @property
    def estimates_dispersion(self) -> bool:
        """A Poisson variable's variance is its mean; of the others φ is estimated."""
        return self.power != 1

    def mean(self, eta: Array) -> Array:
        """η, or e^η."""
        return eta if self.power == 0 else np.exp(eta)

    def slope(self, eta: Array) -> Array:
        """1, or e^η."""
        return np.ones_like(eta) if self.power == 0 else np.exp(eta)

    def variance(self, eta: Array) -> Array:
        """μ^power."""
        return np.ones_like(eta) if self.power == 0 else np.exp(self.power * eta)

    def losses(self, eta: Array, y: Array) -> Array:
        """Half the unit deviance, less what depends on y alone."""
        if self.power == 0:
            return np.asarray(0.5 * (y - eta) ** 2)
        if self.power == 1:
            return np.asarray(np.exp(eta) - y * eta)
        if self.power == 2:
            return y * np.exp(-eta) + eta
        p = self.power
        return np.asarray(np.exp((2 - p) * eta) / (2 - p) - y * np.exp((1 - p) * eta) / (1 - p))

    def deviance(self, eta: Array, y: Array) -> float:
        """2 Σ (loss − loss of μ = y)."""
        return float(2 * (self.losses(eta, y).sum() - self._saturated(y)))

    def start(self, y: Array) -> float:
        """The mean, under the link."""
        return float(y.mean()) if self.power == 0 else float(np.log(max(float(y.mean()), 1e-12)))

    def _saturated(self, y: Array) -> float:
        p = self.power
        if p == 0:
            return 0.0
        if p == 1:
            return float((y - xlogy(y, y)).sum())
        if p == 2:
            return float((1 + np.log(y)).sum())
        return float((y ** (2 - p) * (1 / (2 - p) - 1 / (1 - p))).sum())


@dataclass(frozen=True)
class Exposed:
    """Numbers with the log link of rows that were observed for so long each: η is of one unit of it, μ = e·exp(η)."""

    family: Numbers
    exposure: Vector
    """e of each row."""

    @property
    def estimates_dispersion(self) -> bool:
        """As of the family."""
        return self.family.estimates_dispersion

    def mean(self, eta: Array) -> Array:
        """μ of η."""
        return self.family.mean(self._whole(eta))

    def slope(self, eta: Array) -> Array:
        """dμ/dη."""
        return self.family.slope(self._whole(eta))

    def variance(self, eta: Array) -> Array:
        """V(μ(η))."""
        return self.family.variance(self._whole(eta))

    def losses(self, eta: Array, y: Array) -> Array:
        """The loss of each row."""
        return self.family.losses(self._whole(eta), y)

    def deviance(self, eta: Array, y: Array) -> float:
        """D."""
        return self.family.deviance(self._whole(eta), y)

    def start(self, y: Array) -> float:
        """η of a model that has an intercept only: where Σ (y − e·m) (e·m)^(1−p) is 0."""
        e, p = self.exposure, self.family.power
        return float(np.log(max(float((y * e ** (1 - p)).sum() / (e ** (2 - p)).sum()), 1e-12)))

    def _whole(self, eta: Array) -> Array:
        return np.asarray(eta + np.log(self.exposure))


@dataclass(frozen=True)
class Quadratic:
    """½ βᵀPβ − βᵀl."""

    matrix: Array
    vector: Array

    def value(self, beta: Vector) -> float:
        """At β."""
        return float(0.5 * beta @ self.matrix @ beta - beta @ self.vector)


@dataclass(frozen=True)
class Fit:
    """A fitted model."""

    beta: Vector
    information: Array
    """ZᵀWZ."""
    deviance: float
    null_deviance: float
    dispersion: float
    """φ."""
    freedom: int
    """Rows less coefficients."""

    @property
    def covariance(self) -> Array:
        """Of the coefficients."""
        return np.asarray(np.linalg.inv(self.information) * self.dispersion)


def fit(
    z: Array,
    y: Array,
    family: Family,
    penalty: Quadratic | None = None,
    start: Vector | None = None,
    weights: Vector | None = None,
) -> Fit:
    """Minimise the mean loss of Zβ plus the penalty by Fisher scoring with halved steps; the last column is the ones.

    `weights` say how much each row counts; the deviances are of rows that count alike.

    Raises:
        NoSolution: where classes are told apart perfectly, or no step makes the loss smaller.
    """
    rows = len(y)
    beta = np.append(np.zeros(z.shape[1] - 1), family.start(y)) if start is None else start
    none = Quadratic(np.zeros((z.shape[1], z.shape[1])), np.zeros(z.shape[1])) if penalty is None else penalty
    each = np.ones(rows) if weights is None else weights
    value = _objective(z, y, family, none, beta, each)
    for _ in range(STEPS):
        eta = z @ beta
        slope, variance = family.slope(eta), family.variance(eta)
        score = z.T @ (each * slope / variance * (y - family.mean(eta))) / rows - none.matrix @ beta + none.vector
        hessian = (z.T * (each * slope**2 / variance)) @ z / rows + none.matrix
        step = np.linalg.lstsq(hessian, score, rcond=1e-14)[0]
        decrement = float(score @ step)
        before = value
        beta, value = _along(z, y, family, none, beta, step, value, each)
        if isinstance(family, Classes) and penalty is None and value < SEPARATED:
            raise NoSolution(
                "the columns tell the two classes apart perfectly, so that no finite coefficients are best: take a "
                "`penalty`, or leave out the column that knows the label"
            )
        scale = max(1.0, abs(value))
        stalled = before - value <= ROUNDING * scale and decrement <= STALLED * scale
        if stalled or decrement <= CONVERGED * scale:
            return _fitted(z, y, family, beta)
    raise NoSolution(f"the coefficients did not settle in {STEPS} steps: scale the columns, or take a `penalty`")


def _along(
    z: Array, y: Array, family: Family, penalty: Quadratic, beta: Vector, step: Vector, value: float, each: Vector
) -> tuple[Vector, float]:
    length = 1.0
    while length >= SHORTEST:
        new = beta + length * step
        reached = _objective(z, y, family, penalty, new, each)
        if np.isfinite(reached) and reached <= value + 1e-14 * abs(value):
            return new, reached
        length /= 2
    return beta, value  # rounding is all that is left


def _objective(z: Array, y: Array, family: Family, penalty: Quadratic, beta: Vector, each: Vector) -> float:
    with np.errstate(over="ignore", invalid="ignore"):
        return float((each * family.losses(z @ beta, y)).mean()) + penalty.value(beta)


def _fitted(z: Array, y: Array, family: Family, beta: Vector) -> Fit:
    eta = z @ beta
    variance, freedom = family.variance(eta), len(y) - z.shape[1]
    residuals = (y - family.mean(eta)) ** 2 / variance
    dispersion = float(residuals.sum() / freedom) if family.estimates_dispersion and freedom > 0 else 1.0
    information = (z.T * (family.slope(eta) ** 2 / variance)) @ z
    null = family.deviance(np.full(len(y), family.start(y)), y)
    return Fit(beta, information, family.deviance(eta, y), null, dispersion, freedom)


@dataclass(frozen=True)
class Inference:
    """What is known about coefficients beside their values."""

    standard_errors: Vector
    p_values: Vector
    low: Vector
    """Ends of the confidence intervals."""
    high: Vector


def inference(values: Vector, standard_errors: Vector, freedom: float) -> Inference:
    """Wald tests and intervals: Student's with so many degrees of freedom, the normal distribution's where it is 0."""
    from scipy.stats import norm, t  # takes a second to load, and only the end of a run asks for it

    law = t(freedom) if freedom else norm()
    with np.errstate(divide="ignore", invalid="ignore"):
        p_values = 2 * law.sf(np.abs(values / standard_errors))
    reach = law.ppf(0.5 + LEVEL / 2) * standard_errors
    return Inference(standard_errors, p_values, values - reach, values + reach)
