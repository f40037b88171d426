"""Exported blocks give the numbers that Parley computes, in programs that know nothing of it."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from parley.exporting import write_block, write_head
from parley.party.bambi.export import exported
from parley.party.bambi.models import build_model
from parley.party.bambi.steps import predict
from parley.party.exports import Dense, ExportRefused
from parley.services.party.export import ExportedBlock
from parley.spec.parsing import parse_spec
from parley.tables.loading import Table
from parley.tables.preprocessing import Declared, Fitted, Numbers, apply, fit

onnxruntime = pytest.importorskip("onnxruntime", reason="an extra for tests")
SPEC = "name: x\nparties: [a, b]\ndtype: float64\ntrain: {{algorithm: bambi, model: {model}}}\n"
MODELS = {
    "mlp": ("{kind: mlp, hidden: [5], out: 3, activation: tanh}", {"hidden": (5,), "activation": "tanh"}),
    "linear": ("{kind: linear, out: 3}", {}),
    "cnn": ("{kind: cnn, out: 3, image_shape: [4, 4]}", {"image_shape": (4, 4)}),
}


def as_they_are(width: int) -> Fitted:
    return Fitted(tuple(Numbers(f"c{place}", None, 0.0, 1.0) for place in range(width)), ())


def run_onnx(path, **inputs):
    return onnxruntime.InferenceSession(str(path)).run(None, inputs)[0]


@pytest.mark.parametrize("kind", MODELS)
def test_a_network_in_onnx_gives_the_addend_of_the_party(kind, tmp_path):
    written, options = MODELS[kind]
    network = build_model(kind, 16, 3, dtype=torch.float64, **options)
    x, generator = network.initial(np.random.default_rng(1)), np.random.default_rng(2)
    y, rows = generator.normal(size=(3, 4)), generator.normal(size=(7, 16))
    saved = {f"embedding.{name}": tensor for name, tensor in network.state_dict(x).items()} | {"y": torch.from_numpy(y)}
    layers = exported(parse_spec(SPEC.format(model=written)), 0, saved)
    block = ExportedBlock("run", "a", "bambi", as_they_are(16), layers)
    files = {path.name: path for path in write_block(block, tmp_path)}
    expected = predict(network, x, y, rows, True).reshape(7, 4)
    exact = 1e-12 if kind != "cnn" else 1e-5  # runtimes convolve in single precision
    assert np.abs(run_onnx(files["block.onnx"], numbers=rows) - expected).max() < exact
    assert ("coefficients.csv" in files) == (kind == "linear")
    if kind == "linear":
        lines = list(csv.reader(files["coefficients.csv"].open()))[1:]
        table = np.array([[float(value) for value in line[1:]] for line in lines])
        assert np.abs(rows @ table[:-1] + table[-1] - expected).max() < 1e-12


def test_the_state_dict_rebuilds_the_block_in_plain_torch(tmp_path):
    layers = [Dense(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([0.5, -0.5]))]
    fitted = Fitted((Numbers("u", 7.0, 1.0, 2.0), Numbers("v", None, 0.0, 4.0)), ())
    write_block(ExportedBlock("run", "a", "glm", fitted, layers), tmp_path)
    tensors = torch.load(tmp_path / "block.pt", weights_only=True)
    described = json.loads((tmp_path / "block.json").read_text())
    rows = torch.tensor([[float("nan"), 8.0], [3.0, 4.0]], dtype=torch.float64)
    filled = torch.where(rows.isnan(), tensors["preprocessing.fill"], rows)
    columns = (filled - tensors["preprocessing.shift"]) / tensors["preprocessing.scale"]
    addend = torch.nn.functional.linear(columns, tensors["layers.0.weight"], tensors["layers.0.bias"])
    assert described["inputs"]["numbers"] == ["u", "v"]
    assert np.abs(run_onnx(tmp_path / "block.onnx", numbers=rows.numpy()) - addend.numpy()).max() < 1e-12


def test_missing_values_and_unseen_categories_are_treated_as_in_training(tmp_path):
    generator, texts = np.random.default_rng(4), np.array(["red", "blue", None, "red", "green"], dtype=object)
    values = generator.normal(size=(5, 2))
    values[1, 0] = np.nan
    raw = Table(np.arange(5).astype(str), values, ["u", "v"], "t", texts={"colour": texts})
    fitted = fit(Declared("median", ("colour",), max_categories=2, scale="standard"), raw, np.arange(5))
    weight = generator.normal(size=(len(fitted.outputs), 2))
    write_block(ExportedBlock("run", "a", "glm", fitted, [Dense(weight)]), tmp_path)
    new = replace(raw, texts={"colour": np.array(["blue", "pink", None, "green", "red"], dtype=object)})
    expected = apply(fitted, new).features @ weight
    spelt = np.array(["" if text is None else text for text in new.texts["colour"]], dtype=object)
    found = run_onnx(tmp_path / "block.onnx", **{"numbers": values, "category 0": spelt})
    assert np.abs(found - expected).max() < 1e-12


@pytest.mark.parametrize("link", ["softmax", "logistic", "exponential"])
def test_the_head_turns_sums_into_scores(link, tmp_path):
    sums = np.array([[1.0, 2.0], [0.0, -3.0]])
    write_head(tmp_path, "run", link, ["no", "yes"])
    found = run_onnx(tmp_path / "head.onnx", sum=sums)
    reference = {
        "softmax": np.exp(sums) / np.exp(sums).sum(axis=1, keepdims=True),
        "logistic": 1 / (1 + np.exp(-sums)),
        "exponential": np.exp(sums),
    }[link]
    assert np.abs(found - reference).max() < 1e-12
    assert json.loads((tmp_path / "head.json").read_text())["classes"] == ["no", "yes"]


def test_a_network_of_the_owners_own_code_is_not_exported():
    spec = parse_spec(SPEC.format(model="{kind: import, factory: 'mine:make', out: 3}"))
    with pytest.raises(ExportRefused, match="own code"):
        exported(spec, 0, {"y": torch.zeros(3, 2), "embedding.w": torch.zeros(1)})
