import sys

import numpy as np
import pytest
import torch
from torch import nn

from parley.numerics.streams import stream
from parley.party.bambi.models import (
    InvalidModelSize,
    ModelImportRefused,
    ModelShapeMismatch,
    UnknownModel,
    build_model,
)

DOUBLE = torch.float64


def features(rows, columns, dtype=DOUBLE):
    return torch.from_numpy(stream(1, "features").standard_normal((rows, columns))).to(dtype)


def weights(model, t=0):
    """Weights with non-zero biases, so that a forgotten bias shows."""
    return torch.from_numpy(stream(2, "weights", t=t).standard_normal(model.size)).to(model.dtype)


def make_module(features, out):
    return nn.Sequential(nn.Linear(features, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, out))


def make_batch_norm(features, out):
    return nn.Sequential(nn.Linear(features, out), nn.BatchNorm1d(out))


def make_dropout(features, out):
    return torch.nn.Sequential(torch.nn.Linear(features, out), torch.nn.Dropout(0.1))


def make_attention(features, out):
    return torch.nn.MultiheadAttention(features, 2, dropout=0.1)


def make_still(features, out):
    return torch.nn.Sequential(torch.nn.Linear(features, out), torch.nn.Dropout(0.0))


def make_too_wide(features, out):
    return nn.Linear(features, out + 1)


def make_nothing(features, out):
    return None


HERE = __name__
ALLOWED = {"allowed_imports": [f"{HERE}:make_module"], "factory": f"{HERE}:make_module"}

MODELS = {
    "identity": lambda: build_model("identity", 6, 6, dtype=DOUBLE),
    "linear": lambda: build_model("linear", 6, 4, dtype=DOUBLE),
    "mlp": lambda: build_model("mlp", 6, 4, (8, 7), "tanh", dtype=DOUBLE),
    "cnn": lambda: build_model("cnn", 35, 4, (3, 5), image_shape=(7, 5), dtype=DOUBLE),
    "colour cnn": lambda: build_model("cnn", 24, 4, image_shape=(2, 1, 12), activation="tanh", dtype=DOUBLE),
    "import": lambda: build_model("import", 6, 4, dtype=DOUBLE, **ALLOWED),
}


class Strip(nn.Module):
    """The cnn as an ordinary module with its own weights."""

    def __init__(self):
        super().__init__()
        self.conv = nn.ModuleList([nn.Conv2d(1, 3, 3, 2, padding=1), nn.Conv2d(3, 5, 3, 2, padding=1)])
        self.output = nn.Linear(20, 4)

    def forward(self, a):
        image = a.reshape(-1, 1, 7, 5)
        for layer in self.conv:
            image = torch.relu(layer(image))
        return self.output(image.flatten(1))


def dense_module(*layers):
    module = nn.Module()
    module.layers = nn.ModuleList(layers)

    def forward(a):
        for index, layer in enumerate(layers):
            a = layer(a if index == 0 else torch.tanh(a))
        return a

    module.forward = forward
    return module


ORDINARY = {
    "linear": lambda: dense_module(nn.Linear(6, 4)),
    "mlp": lambda: dense_module(nn.Linear(6, 8), nn.Linear(8, 7), nn.Linear(7, 4)),
    "cnn": Strip,
    "import": lambda: make_module(6, 4),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_values_and_gradients_match_an_ordinary_module(name):
    model, module = MODELS[name](), ORDINARY[name]().double()
    x, a = weights(model).requires_grad_(), features(9, model.features)
    module.load_state_dict(model.state_dict(x))

    embedding, expected = model.apply(x, a), module(a)
    torch.testing.assert_close(embedding, expected)
    embedding.square().sum().backward()
    expected.square().sum().backward()
    gradient = torch.cat([parameter.grad.reshape(-1) for parameter in module.parameters()])
    torch.testing.assert_close(x.grad, gradient)


@pytest.mark.parametrize("name", [*MODELS, "relu mlp"])
def test_what_takes_derivatives_gives_those_of_autograd(name):
    makers = MODELS | {"relu mlp": lambda: build_model("mlp", 6, 4, (8, 7), dtype=DOUBLE)}
    model = makers[name]()
    x, a = weights(model), features(9, model.features)
    s, pullback = model.with_pullback(x.numpy(), a.numpy())
    leaf = x.clone().requires_grad_()
    expected = model.apply(leaf, a)
    np.testing.assert_allclose(s, expected.detach(), rtol=1e-12, atol=1e-14)
    gradient = torch.autograd.grad(expected, leaf, expected.detach().sin())[0] if model.size else leaf.detach()
    np.testing.assert_allclose(pullback(np.sin(s)), gradient, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("name", MODELS)
def test_a_stack_equals_its_rows_one_by_one(name):
    model = MODELS[name]()
    stack, a = torch.stack([weights(model, t) for t in range(3)]), features(9, model.features)
    embeddings = model.apply_stack(stack, a)
    assert embeddings.shape == (3, 9, model.out)
    for x, embedding in zip(stack, embeddings, strict=True):
        torch.testing.assert_close(embedding, model.apply(x, a))


@pytest.mark.parametrize("name", [name for name in MODELS if name != "identity"])
def test_the_gradient_of_a_stack_is_the_gradient_of_each_row(name):
    model = MODELS[name]()
    stack, a = (
        torch.stack([weights(model, t) for t in range(3)]).requires_grad_(),
        features(4, model.features),
    )
    model.apply_stack(stack, a).square().sum().backward()
    x = stack.detach()[1].requires_grad_()
    model.apply(x, a).square().sum().backward()
    torch.testing.assert_close(stack.grad[1], x.grad)


@pytest.mark.parametrize("name", MODELS)
def test_named_tensors_make_the_same_vector_again(name):
    model = MODELS[name]()
    x = weights(model)
    torch.testing.assert_close(model.from_state_dict(model.state_dict(x)), x, rtol=0, atol=0)


def test_initial_weights_are_the_same_on_every_machine():
    x = build_model("mlp", 3, 2, (4,), "tanh").initial(stream(7, "initial"))
    assert x.dtype == torch.float32
    assert x[:4].tolist() == [
        0.5542293787002563,
        -0.8909018635749817,
        -0.4713260233402252,
        -0.5996125340461731,
    ]


def test_initial_biases_are_zero_and_scales_are_one():
    tensors = (model := MODELS["import"]()).state_dict(model.initial(stream(7, "initial")))
    assert not tensors["0.bias"].any()
    assert tensors["1.weight"].tolist() == [1.0] * 5
    assert tensors["0.weight"].abs().max() > 0


@pytest.mark.parametrize(("activation", "variance"), [("relu", 2 / 50), ("tanh", 1 / 50)])
def test_hidden_weights_start_with_the_variance_that_their_activation_needs(activation, variance):
    model = build_model("mlp", 50, 4, (400,), activation)
    hidden = model.state_dict(model.initial(stream(3, "initial")))["layers.0.weight"]
    # 20000 uniform weights: the sample variance is within 5 standard errors, 5 · 0.0063, of its mean.
    assert float(hidden.var()) == pytest.approx(variance, rel=0.032)


def test_a_deep_relu_network_neither_fades_nor_explodes_at_the_start():
    model = build_model("mlp", 64, 32, (64, 64, 64))
    embedding = model.apply(model.initial(stream(3, "initial")), features(500, 64, torch.float32))
    assert 0.3 < float(embedding.std()) < 3


def test_the_identity_has_no_weights():
    model = MODELS["identity"]()
    assert model.size == 0
    a = features(2, 6)
    torch.testing.assert_close(model.apply(model.initial(stream(1, "initial")), a), a)


def test_the_size_counts_weights_and_biases():
    assert build_model("mlp", 26, 32, (64,)).size == 26 * 64 + 64 + 64 * 32 + 32


@pytest.mark.parametrize(
    ("x", "a", "reason"),
    [
        (torch.zeros(27), torch.zeros(5, 6), r"Weights have shape \(27,\).*wants \(28,\)"),
        (torch.zeros(1, 28), torch.zeros(5, 6), r"Weights have shape \(1, 28\)"),
        (torch.zeros(28), torch.zeros(5, 7), r"Features have shape \(5, 7\).*\(batch, 6\)"),
        (torch.zeros(28), torch.zeros(6), "Features have shape"),
        (torch.zeros(28, dtype=DOUBLE), torch.zeros(5, 6), "Weights are torch.float64"),
        (torch.zeros(28), torch.zeros(5, 6, dtype=DOUBLE), "Features are torch.float64"),
    ],
)
def test_a_wrong_shape_or_type_is_refused(x, a, reason):
    with pytest.raises(ModelShapeMismatch, match=reason):
        build_model("linear", 6, 4).apply(x, a)


def test_a_stack_with_a_wrong_size_is_refused():
    with pytest.raises(ModelShapeMismatch, match=r"\(stack, 28\)"):
        build_model("linear", 6, 4).apply_stack(torch.zeros(28), torch.zeros(5, 6))


@pytest.mark.parametrize(
    "tensors",
    [
        {},
        {"layers.0.weight": torch.zeros(4, 6)},
        {"layers.0.weight": torch.zeros(6, 4), "layers.0.bias": torch.zeros(4)},
    ],
)
def test_named_tensors_of_another_model_are_refused(tensors):
    with pytest.raises(ModelShapeMismatch, match="saved from"):
        build_model("linear", 6, 4).from_state_dict(tensors)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("identity", {"out": 3}),
        ("linear", {"hidden": (3,)}),
        ("mlp", {}),
        ("mlp", {"hidden": (0,)}),
        ("linear", {"features": 0}),
        ("cnn", {}),
        ("cnn", {"image_shape": (2, 2)}),
        ("cnn", {"image_shape": (2, 3), "hidden": (4,)}),
    ],
)
def test_sizes_that_make_no_network_are_refused(kind, options):
    with pytest.raises(InvalidModelSize):
        build_model(kind, **{"features": 6, "out": 4, **options})


def test_an_unknown_kind_or_activation_is_refused():
    with pytest.raises(UnknownModel, match="identity, linear, mlp"):
        build_model("transformer", 6, 4)
    with pytest.raises(UnknownModel, match="relu or tanh"):
        build_model("mlp", 6, 4, (3,), "swish")


def test_a_dropout_that_drops_nothing_is_no_hindrance():
    name = f"{HERE}:make_still"
    assert build_model("import", 6, 4, factory=name, allowed_imports=[name]).features == 6


def test_a_model_that_was_not_allowed_is_refused_before_its_code_runs():
    with pytest.raises(ModelImportRefused, match="policy"):
        build_model("import", 6, 4, factory="antigravity:fly")
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (f"{HERE}:make_batch_norm", "buffers"),
        (f"{HERE}:make_dropout", "drops values at random.*leave dropout out"),
        (f"{HERE}:make_attention", "drops values at random"),
        (f"{HERE}:make_nothing", "must return a torch.nn.Module"),
        (f"{HERE}:absent", "cannot be imported"),
        ("no_such_package:make", "cannot be imported"),
        ("no_colon", "package.module:function"),
    ],
)
def test_an_allowed_import_that_makes_no_usable_module_is_refused(function, reason):
    with pytest.raises(ModelImportRefused, match=reason):
        build_model("import", 6, 4, factory=function, allowed_imports=[function])


def test_an_imported_model_with_the_wrong_output_is_refused():
    function = f"{HERE}:make_too_wide"
    model = build_model("import", 6, 4, factory=function, allowed_imports=[function])
    with pytest.raises(ModelShapeMismatch, match=r"shape \(2, 5\) where \(2, 4\)"):
        model.apply(torch.zeros(model.size), torch.zeros(2, 6))


def test_initial_weights_do_not_touch_torch_randomness():
    before = torch.get_rng_state()
    build_model("mlp", 6, 4, (3,)).initial(np.random.default_rng(0))
    assert torch.equal(before, torch.get_rng_state())
