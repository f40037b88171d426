"""Embedding networks T(x, a): the map from a party's features a to its embedding, with x as one flat vector.

Bilevel algorithms treat a network's weights as a point x ∈ ℝᵖ: they perturb it along directions, clip it,
average it and checkpoint it. So a model here owns no weights. It is a pure function of (x, a) and a layout
that says which slice of x is which tensor. `apply_stack` evaluates S weight vectors on one batch in one go:
the base trajectory and its Q perturbed copies cost one batched product per layer.
"""

import importlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from parley.numerics.arrays import Array

Pullback = Callable[[Array], Array]
"""From weights w of B × out to ∇_x Σ_i ⟨T(x, a_i), w_i⟩, flat as x is; to be called once."""

_ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh}
_GAINS = {"relu": math.sqrt(2.0), "tanh": 1.0}
KINDS = ("identity", "linear", "mlp", "cnn", "import")


class ModelError(ValueError):
    """An embedding model cannot be built or used as asked."""


class UnknownModel(ModelError):
    """The kind of model, or its activation, is not one that we have."""


class InvalidModelSize(ModelError):
    """Features, widths, output or image shape do not make a network."""


class ModelShapeMismatch(ModelError):
    """Weights or features do not have the shape or type that the model was built for."""


class ModelImportRefused(ModelError):
    """A model would come from code that this party has not allowed, or that makes no usable module."""


@dataclass(frozen=True)
class Parameter:
    """One named tensor of a model and how it starts."""

    name: str
    """Name in the state dictionary."""
    shape: tuple[int, ...]
    """Shape as torch.nn stores it (a weight is out × in)."""
    bound: float
    """Initial entries are uniform in ±bound."""
    centre: float = 0.0
    """Middle of the initial entries: 1 for a scale, else 0."""

    @property
    def size(self) -> int:
        """Number of entries."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class EmbeddingModel(ABC):
    """A network without weights: `apply(x, a)` with x of `size` entries and a of B × `features`."""

    kind: ClassVar[str]
    features: int
    """Columns of a."""
    out: int
    """Columns of the embedding."""
    parameters: tuple[Parameter, ...]
    """Tensors in the order in which x holds them."""
    dtype: torch.dtype
    """Type of x, of a and of the embedding."""

    @property
    def size(self) -> int:
        """Number of weights p."""
        return sum(parameter.size for parameter in self.parameters)

    def initial(self, generator: np.random.Generator) -> Tensor:
        """Draw x_0 (He-uniform weights, zero biases); numpy draws it, so it is the same on every machine."""
        parts = [
            p.centre + p.bound * (2.0 * generator.random(p.size) - 1.0) if p.bound else np.full(p.size, p.centre)
            for p in self.parameters
        ]
        return torch.from_numpy(np.concatenate([np.empty(0), *parts])).to(self.dtype)

    def apply(self, x: Tensor, a: Tensor) -> Tensor:
        """Return T(x, a), B × out; differentiable in x and in a."""
        self._check(x, a, dimensions=1)
        return self._forward(self._tensors(x), a)

    def apply_stack(self, x_stack: Tensor, a: Tensor) -> Tensor:
        """Return T(x_s, a) for each row of S × p weights, S × B × out, in one pass."""
        self._check(x_stack, a, dimensions=2)
        return self._forward_stack(self._tensors(x_stack), a)

    def with_pullback(self, x: Array, a: Array) -> tuple[Array, Pullback]:
        """Return T(x, a), and what takes derivatives at it."""
        leaf = torch.from_numpy(x).clone().requires_grad_()
        s = self.apply(leaf, torch.from_numpy(a))

        def pullback(weights: Array) -> Array:
            if not x.size:
                return x
            (gradient,) = torch.autograd.grad(s, leaf, torch.from_numpy(weights))
            return np.asarray(gradient.numpy())

        return s.detach().numpy(), pullback

    def row_gradients(self, x: Tensor, a: Tensor, weights: Tensor) -> Tensor:
        """∇_x ⟨T(x, a_i), w_i⟩ of each row i, B × p."""

        def weighed(point: Tensor, row: Tensor, weight: Tensor) -> Tensor:
            return (self._forward(self._tensors(point), row.unsqueeze(0))[0] * weight).sum()

        self._check(x, a, dimensions=1)
        gradients: Tensor = torch.func.vmap(torch.func.grad(weighed), in_dims=(None, 0, 0))(x.detach(), a, weights)
        return gradients

    def state_dict(self, x: Tensor) -> dict[str, Tensor]:
        """Return x as named tensors, copied: what a safetensors file holds."""
        self._check_weights(x, dimensions=1)
        return {name: tensor.detach().clone() for name, tensor in self._tensors(x).items()}

    def from_state_dict(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return the flat vector that `state_dict` was made from."""
        expected = {p.name: p.shape for p in self.parameters}
        if tensors.keys() != expected.keys():
            raise ModelShapeMismatch(
                f"The {self.kind} model has tensors {sorted(expected)}, not {sorted(tensors)}: "
                "load the weights into the model that they were saved from."
            )
        for name, shape in expected.items():
            if tuple(tensors[name].shape) != shape:
                raise ModelShapeMismatch(
                    f"Tensor {name!r} has shape {tuple(tensors[name].shape)}, the model wants {shape}: "
                    "load the weights into the model that they were saved from."
                )
        parts = [tensors[p.name].detach().to(self.dtype).reshape(-1) for p in self.parameters]
        return torch.cat([torch.empty(0, dtype=self.dtype), *parts])

    @abstractmethod
    def _forward(self, weights: Mapping[str, Tensor], a: Tensor) -> Tensor: ...

    @abstractmethod
    def _forward_stack(self, weights: Mapping[str, Tensor], a: Tensor) -> Tensor: ...

    def _tensors(self, x: Tensor) -> dict[str, Tensor]:
        """Cut x, or a stack of x, into views with the parameters' names and shapes."""
        parts = torch.split(x, [p.size for p in self.parameters], dim=-1) if self.parameters else ()
        return {p.name: part.reshape(*x.shape[:-1], *p.shape) for p, part in zip(self.parameters, parts, strict=True)}

    def _check(self, x: Tensor, a: Tensor, *, dimensions: int) -> None:
        self._check_weights(x, dimensions=dimensions)
        if a.ndim != 2 or a.shape[1] != self.features:
            raise ModelShapeMismatch(
                f"Features have shape {tuple(a.shape)}, the {self.kind} model wants (batch, {self.features}):"
                " check the party's columns against the run's model."
            )
        if a.dtype != self.dtype:
            raise ModelShapeMismatch(
                f"Features are {a.dtype}, the model computes in {self.dtype}: convert them once when loading."
            )

    def _check_weights(self, x: Tensor, *, dimensions: int) -> None:
        if x.ndim != dimensions or x.shape[-1] != self.size:
            wanted = f"({self.size},)" if dimensions == 1 else f"(stack, {self.size})"
            raise ModelShapeMismatch(
                f"Weights have shape {tuple(x.shape)}, the {self.kind} model wants {wanted}: "
                "the weights belong to a model with other widths."
            )
        if x.dtype != self.dtype:
            raise ModelShapeMismatch(f"Weights are {x.dtype}, the model computes in {self.dtype}: convert them.")


@dataclass(frozen=True)
class IdentityModel(EmbeddingModel):
    """T(x, a) = a: the features are the embedding and x is empty."""

    kind: ClassVar[str] = "identity"

    def _forward(self, weights: Mapping[str, Tensor], a: Tensor) -> Tensor:  # noqa: ARG002
        return a

    def apply_stack(self, x_stack: Tensor, a: Tensor) -> Tensor:
        """Return a once per row of the (S × 0) stack; the copies share memory."""
        self._check(x_stack, a, dimensions=2)
        return a.expand(x_stack.shape[0], *a.shape)

    def _forward_stack(self, weights: Mapping[str, Tensor], a: Tensor) -> Tensor:
        raise NotImplementedError  # apply_stack above needs no weights


@dataclass(frozen=True)
class DenseModel(EmbeddingModel):
    """Affine layers with an activation between them: `mlp`, and `linear` when there is one layer."""

    kind: ClassVar[str] = "mlp"
    activation: str = "relu"

    @property
    def depth(self) -> int:
        """Number of affine layers."""
        return len(self.parameters) // 2

    def with_pullback(self, x: Array, a: Array) -> tuple[Array, Pullback]:
        """The same in closed form by numpy: on a small batch, autograd takes several times what its arithmetic does."""
        inputs, weights = [a], self._layers(x)
        for layer, (weight, bias) in enumerate(weights):
            s = inputs[-1] @ weight.T
            s += bias
            if layer + 1 < self.depth:
                inputs.append(np.tanh(s, out=s) if self.activation == "tanh" else np.maximum(s, 0, out=s))

        def pullback(outer: Array) -> Array:
            gradient, ones = np.empty_like(x), np.ones(len(a), x.dtype)
            layers = self._layers(gradient)
            for layer in reversed(range(self.depth)):
                np.matmul(outer.T, inputs[layer], out=layers[layer][0])
                np.matmul(ones, outer, out=layers[layer][1])
                if layer:
                    outer = outer @ weights[layer][0]
                    value = inputs[layer]
                    outer *= 1 - value * value if self.activation == "tanh" else value > 0
            return gradient

        return s, pullback

    def _layers(self, x: Array) -> list[tuple[Array, Array]]:
        """Weight and bias of every layer, as views of x."""
        views, start = [], 0
        for parameter in self.parameters:
            views.append(x[start : start + parameter.size].reshape(parameter.shape))
            start += parameter.size
        return list(zip(views[::2], views[1::2], strict=True))

    def _forward(self, weights: Mapping[str, Tensor], a: Tensor) -> Tensor:
        for layer in range(self.depth):
            a = a if layer == 0 else _ACTIVATIONS[self.activation](a)
            a = functional.linear(a, weights[f"layers.{layer}.weight"], weights[f"layers.{layer}.bias"])
        return a

    def _forward_stack(self, weights: Mapping[str, Tensor], a: Tensor) -> Tensor:
        a = a.expand(weights["layers.0.weight"].shape[0], *a.shape)
        for layer in range(self.depth):
            a = a if layer == 0 else _ACTIVATIONS[self.activation](a)
            a = _affine_stack(a, weights[f"layers.{layer}.weight"], weights[f"layers.{layer}.bias"])
        return a


@dataclass(frozen=True)
class ConvolutionalModel(EmbeddingModel):
    """Two 3 × 3 convolutions of stride 2, each with an activation, then an affine layer.

    Strides rather than pooling: max pooling took two thirds of the time and adds kinks to T(·, a).
    """

    kind: ClassVar[str] = "cnn"
    activation: str = "relu"
    image_shape: tuple[int, int, int] = (1, 1, 1)
    """Channels, height and width of the image that a row of a holds."""

    def _forward(self, weights: Mapping[str, Tensor], a: Tensor) -> Tensor:
        image = a.reshape(-1, *self.image_shape)
        for layer in range(2):
            image = self._convolve(image, weights[f"conv.{layer}.weight"], weights[f"conv.{layer}.bias"], groups=1)
        return functional.linear(image.flatten(1), weights["output.weight"], weights["output.bias"])

    def _forward_stack(self, weights: Mapping[str, Tensor], a: Tensor) -> Tensor:
        stack = weights["output.bias"].shape[0]
        # The S networks become channel groups of one: the first layer shares its input, the second does not.
        image = a.reshape(-1, *self.image_shape)
        for layer in range(2):
            kernel = weights[f"conv.{layer}.weight"].flatten(0, 1)
            image = self._convolve(
                image, kernel, weights[f"conv.{layer}.bias"].flatten(), groups=1 if layer == 0 else stack
            )
        per_network = image.reshape(a.shape[0], stack, -1).transpose(0, 1)
        return _affine_stack(per_network, weights["output.weight"], weights["output.bias"])

    def _convolve(self, image: Tensor, kernel: Tensor, bias: Tensor, *, groups: int) -> Tensor:
        convolved = functional.conv2d(image, kernel, bias, stride=2, padding=1, groups=groups)
        return _ACTIVATIONS[self.activation](convolved)


@dataclass(frozen=True)
class ImportedModel(EmbeddingModel):
    """A torch.nn.Module made by the party's own code, run without its own weights and in evaluation mode."""

    kind: ClassVar[str] = "import"
    module: torch.nn.Module = field(kw_only=True)

    def _forward(self, weights: Mapping[str, Tensor], a: Tensor) -> Tensor:
        embedding = torch.func.functional_call(self.module, dict(weights), (a,))
        if not isinstance(embedding, Tensor) or embedding.shape != (a.shape[0], self.out):
            raise ModelShapeMismatch(
                f"The imported model returned {_describe(embedding)} where ({a.shape[0]}, {self.out}) is "
                "wanted: its forward must return one embedding per row."
            )
        return embedding

    def _forward_stack(self, weights: Mapping[str, Tensor], a: Tensor) -> Tensor:
        stacked: Tensor = torch.func.vmap(lambda one: self._forward(one, a))(dict(weights))
        return stacked


def build_model(
    kind: str,
    features: int,
    out: int,
    hidden: Sequence[int] = (),
    activation: str = "relu",
    *,
    image_shape: Sequence[int] | None = None,
    dtype: torch.dtype = torch.float32,
    factory: str | None = None,
    allowed_imports: Collection[str] = (),
) -> EmbeddingModel:
    """Build the embedding model of a run's spec.

    `identity` passes features through; `linear` is one affine layer; `mlp` has the `hidden` widths; `cnn`
    takes its two channel counts from `hidden` (8 and 16 if empty) and needs `image_shape`, (h, w) or
    (channels, h, w); `import` calls `factory`, 'package.module:function', as function(features, out), if
    `allowed_imports` lists it.
    """
    if kind not in KINDS:
        raise UnknownModel(f"Unknown model {kind!r}: use one of {', '.join(KINDS)}.")
    if activation not in _ACTIVATIONS:
        raise UnknownModel(f"Unknown activation {activation!r}: use relu or tanh.")
    if min([features, out, *hidden]) < 1:
        raise InvalidModelSize(
            f"Features ({features}), out ({out}) and hidden widths {tuple(hidden)} must all be at least 1."
        )
    if kind == "identity":
        return _identity(features, out, hidden, dtype)
    if kind == "linear" and hidden:
        raise InvalidModelSize(f"A linear model has no hidden layers, got {tuple(hidden)}: use kind mlp.")
    if kind == "cnn":
        return _convolutional(features, out, hidden, activation, image_shape, dtype)
    if kind == "import":
        return _imported(features, out, factory, allowed_imports, dtype)
    if kind == "mlp" and not hidden:
        raise InvalidModelSize("An mlp needs hidden widths, for instance [64, 64, 64]: without any, use kind linear.")
    return _dense(features, out, hidden, activation, dtype)


def _identity(features: int, out: int, hidden: Sequence[int], dtype: torch.dtype) -> EmbeddingModel:
    if out != features or hidden:
        raise InvalidModelSize(
            f"The identity model returns its {features} features: out must be {features} and hidden empty, "
            f"got out {out} and hidden {tuple(hidden)}."
        )
    return IdentityModel(features, out, (), dtype)


def _dense(features: int, out: int, hidden: Sequence[int], activation: str, dtype: torch.dtype) -> EmbeddingModel:
    widths = [features, *hidden, out]
    parameters: list[Parameter] = []
    for layer, (fan_in, fan_out) in enumerate(pairwise(widths)):
        last = layer == len(widths) - 2
        parameters += _layer(f"layers.{layer}", (fan_out, fan_in), fan_in, 1.0 if last else _GAINS[activation])
    return DenseModel(features, out, tuple(parameters), dtype, activation)


def _convolutional(
    features: int,
    out: int,
    hidden: Sequence[int],
    activation: str,
    image_shape: Sequence[int] | None,
    dtype: torch.dtype,
) -> EmbeddingModel:
    shape = (1, *image_shape) if image_shape is not None and len(image_shape) == 2 else tuple(image_shape or ())
    if len(shape) != 3 or min(shape) < 1 or math.prod(shape) != features:
        raise InvalidModelSize(
            f"A cnn on {features} features needs an image shape (h, w) or (channels, h, w) with that many "
            f"pixels, got {image_shape}."
        )
    if len(hidden) not in (0, 2):
        raise InvalidModelSize(f"A cnn has two channel counts, for instance [8, 16], got {tuple(hidden)}.")
    channels, height, width = shape
    first, second = hidden or (8, 16)
    for _ in range(2):
        height, width = math.ceil(height / 2), math.ceil(width / 2)
    gain, flat = _GAINS[activation], second * height * width
    parameters = (
        *_layer("conv.0", (first, channels, 3, 3), channels * 9, gain),
        *_layer("conv.1", (second, first, 3, 3), first * 9, gain),
        *_layer("output", (out, flat), flat, 1.0),
    )
    return ConvolutionalModel(features, out, parameters, dtype, activation, (channels, shape[1], shape[2]))


def _imported(
    features: int, out: int, factory: str | None, allowed_imports: Collection[str], dtype: torch.dtype
) -> EmbeddingModel:
    if factory is None or factory.count(":") != 1:
        raise ModelImportRefused(f"An imported model is named 'package.module:function', got {factory!r}.")
    if factory not in allowed_imports:  # before the import: importing runs code
        raise ModelImportRefused(
            f"This party does not allow models from {factory!r}: add it to the allowed imports of its policy."
        )
    module_name, function = factory.split(":")
    try:
        make = getattr(importlib.import_module(module_name), function)
    except (ImportError, AttributeError) as error:
        raise ModelImportRefused(
            f"{factory!r} cannot be imported ({error}): install the package beside the party."
        ) from error
    module = make(features, out)
    if not isinstance(module, torch.nn.Module):
        raise ModelImportRefused(f"{factory!r} returned {_describe(module)}: it must return a torch.nn.Module.")
    if any(True for _ in module.buffers()):
        raise ModelImportRefused(
            f"{factory!r} keeps state in buffers (such as batch normalisation): a model must be a function "
            "of its weights and features alone, so use layer or group normalisation."
        )
    if any(_is_random(part) for part in module.modules()):
        raise ModelImportRefused(
            f"{factory!r} drops values at random: a run must give the same bits when it is resumed, and "
            "hyper-gradients are taken through one network, so leave dropout out (or set it to 0) and regularise by "
            "the run's spec."
        )
    module = module.to(dtype).eval()
    parameters = tuple(_parameter_like(name, tensor) for name, tensor in module.named_parameters())
    return ImportedModel(features, out, parameters, dtype, module=module)


def _is_random(part: torch.nn.Module) -> bool:
    """Whether a layer draws random numbers in training: dropout of its own, inside attention or a recurrent layer."""
    rate = part.p if isinstance(part, torch.nn.modules.dropout._DropoutNd) else getattr(part, "dropout", 0.0)
    return isinstance(part, torch.nn.RReLU) or (isinstance(rate, float | int) and rate > 0)


def _layer(name: str, weight: tuple[int, ...], fan_in: int, gain: float) -> tuple[Parameter, Parameter]:
    # Uniform in ±gain·√(3/fan_in) has variance gain²/fan_in: He for relu, LeCun for tanh.
    bound = gain * math.sqrt(3.0 / fan_in)
    return Parameter(f"{name}.weight", weight, bound), Parameter(f"{name}.bias", weight[:1], 0.0)


def _parameter_like(name: str, tensor: Tensor) -> Parameter:
    shape = tuple(tensor.shape)
    if len(shape) >= 2:
        return Parameter(name, shape, math.sqrt(3.0 / max(1, math.prod(shape[1:]))))
    return Parameter(name, shape, 0.0, centre=0.0 if name.endswith("bias") else 1.0)


def _affine_stack(a: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.baddbmm(bias.unsqueeze(1), a, weight.transpose(1, 2))


def _describe(value: object) -> str:
    return f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
