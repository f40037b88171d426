"""N-way K-shot tasks, drawn from images that are grouped by class (FedBiO paper, appendix B.2).

paper · code
T_{m,n} · `Task`, N · `ways`, K · `shots`, the 15 validation samples · `queries`
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Images = NDArray[np.float64]


class TooFewExamples(ValueError):
    """The classes or the images are too few for the tasks asked for."""


@dataclass(frozen=True, slots=True)
class Task:
    """A small classification problem with labels 0 … ways − 1."""

    support: Images
    """Images to learn the head from: (ways × shots, side, side)."""
    support_labels: NDArray[np.int64]
    query: Images
    """Images to judge it by: (ways × queries, side, side)."""
    query_labels: NDArray[np.int64]


def sample_task(
    images: NDArray[np.uint8],
    *,
    ways: int,
    shots: int,
    queries: int,
    generator: np.random.Generator,
    rotate: bool = True,
) -> Task:
    """Draw a task from `images` of shape (classes, examples, side, side), 255 = ink.

    With `rotate`, each class of the task is turned by a random multiple of 90°, the same for all its images, which
    makes four classes out of one.
    """
    classes, examples = images.shape[:2]
    if classes < ways or examples < shots + queries:
        raise TooFewExamples(
            f"{ways} ways of {shots}+{queries} images asked for, and there are too few classes or images: ask for fewer"
        )
    support, query = [], []
    for chosen in generator.choice(classes, ways, replace=False):
        turns = int(generator.integers(4)) if rotate else 0
        drawn = images[chosen, generator.choice(examples, shots + queries, replace=False)]
        turned = np.rot90(drawn, turns, axes=(1, 2)).astype(np.float64) / 255.0
        support.append(turned[:shots])
        query.append(turned[shots:])
    labels = np.arange(ways, dtype=np.int64)
    return Task(np.concatenate(support), np.repeat(labels, shots), np.concatenate(query), np.repeat(labels, queries))
