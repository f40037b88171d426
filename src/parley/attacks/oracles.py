"""Questions whose refusals would answer: figures inside the sentence of an error."""

import re
from collections.abc import Callable

import numpy as np

from parley.attacks.findings import Finding, bounded
from parley.attacks.stand_in import StandIn
from parley.numerics.few_shot import TooFewExamples, sample_task
from parley.numerics.neumann import SeriesDiverges, neumann_product
from parley.privacy.ring import Ring, ValueOutOfRange
from parley.protocols.refusals import Refusal
from parley.services.party.refusals import CATALOGUE

ERRORS = "figures in errors"
_FIGURE = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")


def told(error: Exception, refusal: Refusal | None) -> str:
    """What a caller is told of an error."""
    return refusal.public if refusal is not None and refusal.public else str(error)


def figures_in(sentence: str, *public: float) -> list[str]:
    """Numbers in a sentence that are not among those that the caller knows."""
    return [text for text in _FIGURE.findall(sentence) if not any(np.isclose(float(text), known) for known in public)]


def ask_for_errors(subject: StandIn) -> list[Finding]:  # noqa: ARG001 (these errors are every run's)
    """Provoke errors that depend on private values, and look for figures in what the caller is told."""
    leaks = [figure for sentence, public in _provoked() for figure in figures_in(sentence, *public)]
    words = f"{len(leaks)} private figures in {len(_provoked())} sentences" + (f": {leaks[:3]}" if leaks else "")
    return [bounded(ERRORS, "client", words, float(bool(leaks)), 0.0, "no private figure in an error", "report it")]


def _provoked() -> list[tuple[str, tuple[float, ...]]]:
    secret, tau = 4711.25, 0.5
    cases: list[tuple[Callable[[], object], type[Exception], tuple[float, ...]]] = [
        (
            lambda: neumann_product(lambda v, _: secret * v, np.ones(2), terms=40, tau=tau),
            SeriesDiverges,
            (tau, 2),
        ),
        (
            lambda: sample_task(
                np.zeros((3, 7, 4, 4), np.uint8), ways=5, shots=1, queries=1, generator=np.random.default_rng(0)
            ),
            TooFewExamples,
            (5, 1),
        ),
        (lambda: Ring(64, 40, 1024.0).encode(np.array([secret])), ValueOutOfRange, ()),
    ]
    found = []
    for call, kind, public in cases:
        try:
            call()
        except kind as error:
            refusal = next((CATALOGUE[each] for each in type(error).__mro__ if each in CATALOGUE), None)
            found.append((told(error, refusal), public))
    return found
