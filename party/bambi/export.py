"""BAMBI's block as plain layers: the embedding network, then the classifier y."""

from collections.abc import Mapping

from torch import Tensor

from parley.party.exports import Activation, Convolution, Dense, ExportRefused, Flat, Images, Layer, Layers, Values
from parley.party.roles import SavedModel
from parley.protocols.bambi.settings import BambiSpec
from parley.spec.run import RunSpec


def exported(spec: RunSpec, index: int, model: SavedModel) -> Layers:
    """The layers of a saved model."""
    train, y = spec.settings(BambiSpec), model["y"].numpy()
    if not train.embeds:
        has_intercept = train.intercept and index == 0
        return [Dense(y[:-1], y[-1]) if has_intercept else Dense(y)]
    prefix = "embedding."
    named = {name.removeprefix(prefix): tensor for name, tensor in model.items() if name.startswith(prefix)}
    return [*_embedding(train, named), Dense(y)]


def _embedding(train: BambiSpec, named: Mapping[str, Tensor]) -> Layers:
    if train.model.kind == "import":
        raise ExportRefused(
            "the network of this run is the owner's own code: export that, with the weights in model.safetensors"
        )
    if train.model.kind == "cnn":
        height, width = train.model.image_shape or (1, 1)
        layers: list[Layer] = [Images((1, height, width))]
        for layer in range(2):
            layers += [Convolution(*_pair(named, f"conv.{layer}")), Activation(train.model.activation)]
        weight, bias = _pair(named, "output")
        return [*layers, Flat(), Dense(weight.T, bias)]
    layers = []
    for layer in range(len(named) // 2):
        weight, bias = _pair(named, f"layers.{layer}")
        layers += [Activation(train.model.activation)] if layer else []
        layers.append(Dense(weight.T, bias))
    return layers


def _pair(named: Mapping[str, Tensor], name: str) -> tuple[Values, Values]:
    return named[f"{name}.weight"].numpy(), named[f"{name}.bias"].numpy()
