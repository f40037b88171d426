"""A party's part of a trained model as plain layers, for use outside: from its preprocessed columns to its addend."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.floating]


class ExportRefused(ValueError):
    """The model is no sequence of plain layers."""


@dataclass(frozen=True)
class Dense:
    """a ↦ a · weight + bias."""

    weight: Values
    """in × out."""
    bias: Values | None = None


@dataclass(frozen=True)
class Activation:
    """Entry by entry."""

    name: Literal["relu", "tanh"]


@dataclass(frozen=True)
class Images:
    """Each row as an image."""

    shape: tuple[int, int, int]
    """Channels, height, width."""


@dataclass(frozen=True)
class Convolution:
    """3 × 3, of stride 2, padded by 1."""

    weight: Values
    """out × in × 3 × 3."""
    bias: Values


@dataclass(frozen=True)
class Flat:
    """Each image as a row."""


Layer = Dense | Activation | Images | Convolution | Flat
Layers = Sequence[Layer]


def is_linear(layers: Layers) -> bool:
    """Whether the block is one affine map."""
    return all(isinstance(layer, Dense) for layer in layers)


def affine(layers: Layers) -> tuple[Values, Values]:
    """Weight (columns × outputs) and intercept of a linear block."""
    first = layers[0]
    assert isinstance(first, Dense)  # noqa: S101 (the caller has asked `is_linear`)
    weight = np.eye(first.weight.shape[0])
    intercept = np.zeros(first.weight.shape[0])
    for layer in layers:
        assert isinstance(layer, Dense)  # noqa: S101
        weight, intercept = weight @ layer.weight, intercept @ layer.weight
        intercept = intercept if layer.bias is None else intercept + layer.bias
    return weight, intercept
