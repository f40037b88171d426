"""Write a party's block, or the label head, as files that other programs run: ONNX, a torch state dict, tables."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from parley.party.exports import Activation, Convolution, Dense, Flat, Images, Layer, affine, is_linear
from parley.tables.preprocessing import Categories, Fitted

if TYPE_CHECKING:
    from parley.services.party.export import ExportedBlock

OPSET, ML_OPSET = 17, 3
"""Versions of ONNX's operators: old enough for every runtime in use."""
LINKS = {"softmax": "Softmax", "logistic": "Sigmoid", "identity": "Identity", "exponential": "Exp"}
INTERCEPT = "(intercept)"


def write_block(block: "ExportedBlock", folder: Path) -> list[Path]:
    """Write every form of a block; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [_onnx_block(block, folder / "block.onnx"), _state_dict(block, folder / "block.pt")]
    files.append(_written(folder / "preprocessing.json", block.fitted.to_json().decode()))
    files.append(_written(folder / "block.json", json.dumps(_described(block), indent=2, ensure_ascii=False)))
    if is_linear(block.layers):
        files.append(_coefficients(block, folder / "coefficients.csv"))
    return files


def write_head(folder: Path, run_id: str, link: str, classes: Sequence[str]) -> list[Path]:
    """Write how the sum over all blocks becomes scores; returns the files."""
    from onnx import TensorProto, helper

    folder.mkdir(parents=True, exist_ok=True)
    names = {"run_id": run_id, "link": link, "classes": list(classes)}
    files = [_written(folder / "head.json", json.dumps(names, indent=2, ensure_ascii=False))]
    if link in LINKS:
        node = helper.make_node(LINKS[link], ["sum"], ["scores"])
        inputs, outputs = (
            helper.make_tensor_value_info(n, TensorProto.DOUBLE, [None, None]) for n in ("sum", "scores")
        )
        files.append(_model(folder / "head.onnx", [node], [inputs], [outputs], [], run_id))
    return files


def _written(path: Path, text: str) -> Path:
    path.write_text(text + "\n", encoding="utf-8")
    return path


def _described(block: "ExportedBlock") -> dict[str, Any]:
    """What the files hold, for people and for whoever rebuilds the torch module."""
    return {
        "run_id": block.run_id,
        "party": block.party,
        "algorithm": block.algorithm,
        "inputs": {
            "numbers": [entry.column for entry in block.fitted.numbers],
            "categories": block.fitted.categorical,
        },
        "columns": list(block.columns),
        "layers": [_layer_fields(layer) for layer in block.layers],
    }


def _layer_fields(layer: Layer) -> dict[str, Any]:
    match layer:
        case Dense(weight=weight, bias=bias):
            return {"kind": "dense", "in": weight.shape[0], "out": weight.shape[1], "bias": bias is not None}
        case Activation(name=name):
            return {"kind": name}
        case Images(shape=shape):
            return {"kind": "images", "shape": list(shape)}
        case Convolution(weight=weight):
            return {"kind": "convolution", "in": weight.shape[1], "out": weight.shape[0]}
    return {"kind": "flat"}


def _state_dict(block: "ExportedBlock", path: Path) -> Path:
    """Tensors by the names that `torch.nn.Sequential` gives to the layers, and figures of the preprocessing."""
    import torch

    tensors = {f"preprocessing.{name}": torch.from_numpy(values) for name, values in _figures(block.fitted).items()}
    for place, layer in enumerate(block.layers):
        if isinstance(layer, Dense | Convolution):
            weight = layer.weight.T if isinstance(layer, Dense) else layer.weight
            tensors[f"layers.{place}.weight"] = torch.from_numpy(np.ascontiguousarray(weight))
            if layer.bias is not None:
                tensors[f"layers.{place}.bias"] = torch.from_numpy(np.ascontiguousarray(layer.bias))
    torch.save(tensors, path)
    return path


def _figures(fitted: Fitted) -> Mapping[str, Any]:
    entries = fitted.numbers
    return {
        "fill": np.array([np.nan if entry.fill is None else entry.fill for entry in entries], np.float64),
        "shift": np.array([entry.shift for entry in entries], np.float64),
        "scale": np.array([entry.scale for entry in entries], np.float64),
    }


def _coefficients(block: "ExportedBlock", path: Path) -> Path:
    """A linear block as a table: a coefficient of each column as it is preprocessed, for each output."""
    weight, intercept = affine(block.layers)
    outputs = [f"output {place}" for place in range(weight.shape[1])]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["column", *outputs])
        for column, values in zip([*block.columns, INTERCEPT], [*weight, intercept], strict=True):
            writer.writerow([column, *(repr(float(value)) for value in values)])
    return path


def _onnx_block(block: "ExportedBlock", path: Path) -> Path:
    from onnx import TensorProto, helper

    graph = _Graph()
    whole = graph.preprocessed(block.fitted)
    dtype = next(layer.weight.dtype for layer in block.layers if isinstance(layer, Dense))
    if any(isinstance(layer, Convolution) for layer in block.layers):
        dtype = np.dtype(np.float32)  # runtimes convolve in no other type
    current = graph.cast(whole, dtype)
    for layer in block.layers:
        current = graph.layer(layer, current, dtype)
    graph.nodes.append(helper.make_node("Cast", [current], ["addend"], to=TensorProto.DOUBLE))
    output = helper.make_tensor_value_info("addend", TensorProto.DOUBLE, [None, None])
    return _model(path, graph.nodes, graph.inputs, [output], graph.constants, block.run_id)


def _model(path: Path, nodes: Any, inputs: Any, outputs: Any, constants: Any, run_id: str) -> Path:
    import onnx
    from onnx import helper

    graph = helper.make_graph(nodes, run_id, inputs, outputs, constants)
    versions = [helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", ML_OPSET)]
    model = helper.make_model(graph, opset_imports=versions, producer_name="parley", ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
    return path


class _Graph:
    """Nodes of a block, one after the other."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.inputs: list[Any] = []
        self.constants: list[Any] = []

    def preprocessed(self, fitted: Fitted) -> str:
        """The columns that the layers take, from the columns of the table."""
        from onnx import TensorProto, helper

        parts = []
        if fitted.numbers:
            self.inputs.append(
                helper.make_tensor_value_info("numbers", TensorProto.DOUBLE, [None, len(fitted.numbers)])
            )
            figures = _figures(fitted)
            missing = self.node("IsNaN", "numbers")
            filled = self.node("Where", missing, self.constant(figures["fill"]), "numbers")
            shifted = self.node("Sub", filled, self.constant(figures["shift"]))
            parts.append(self.node("Div", shifted, self.constant(figures["scale"])))
        for place, entry in enumerate(fitted.categories):
            name = f"category {place}"
            self.inputs.append(helper.make_tensor_value_info(name, TensorProto.STRING, [None]))
            parts.append(self._one_hot(entry, name))
        return self.node("Concat", *parts, axis=1) if len(parts) > 1 else parts[0]

    def _one_hot(self, entry: Categories, name: str) -> str:
        """A column of 0 and 1 for each category; an empty text is a missing one."""
        nowhere = len(entry.outputs)  # a column of its own, which is cut off
        places = {str(text): place for text, place in entry.place.items() if text is not None}
        if entry.fill is not None and "" not in places:
            places[""] = places.get(entry.fill, nowhere)
        default = nowhere if entry.unseen is None else entry.unseen
        codes = self.node(
            "LabelEncoder",
            name,
            domain="ai.onnx.ml",
            keys_strings=list(places),
            values_int64s=list(places.values()),
            default_int64=default,
        )
        return self.node("Gather", self.constant(np.eye(nowhere + 1)[:, :nowhere]), codes)

    def layer(self, layer: Layer, current: str, dtype: Any) -> str:
        """One layer, in a type of numbers."""
        match layer:
            case Dense(weight=weight, bias=bias):
                product = self.node("MatMul", current, self.constant(weight.astype(dtype)))
                return product if bias is None else self.node("Add", product, self.constant(bias.astype(dtype)))
            case Activation(name=name):
                return self.node("Relu" if name == "relu" else "Tanh", current)
            case Images(shape=shape):
                return self.node("Reshape", current, self.constant(np.array([-1, *shape])))
            case Convolution(weight=weight, bias=bias):
                given = (self.constant(weight.astype(dtype)), self.constant(bias.astype(dtype)))
                return self.node("Conv", current, *given, strides=[2, 2], pads=[1, 1, 1, 1])
            case Flat():
                return self.node("Flatten", current, axis=1)

    def cast(self, current: str, dtype: Any) -> str:
        """The same in another type."""
        from onnx import helper

        return self.node("Cast", current, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def constant(self, values: Any) -> str:
        """An array that is part of the model."""
        from onnx import numpy_helper

        name = f"constant {len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def node(self, kind: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """An operation; returns the name of its result."""
        from onnx import helper

        name = f"value {len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], domain=domain, **attributes))
        return name
