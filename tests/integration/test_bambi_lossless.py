"""Training between organisations loses nothing: real processes end where autograd on the pooled data ends."""

import pytest
import torch
import yaml

from parley.services.party.checkpoints import Store
from parley.spec.parsing import parse_spec
from parley.tables.loading import TableRequest, load_labels, load_table
from tests.integration.conftest import PARTIES
from tests.oracle.pooled_bambi import relative_error, trained

MODES = ("implicit", "zeroth_order", "zeroth_order_local")


def spec_of(mode, problem, parties, steps):
    """Full precision, labels in the clear; mini-batches where the mode draws them."""
    implicit = mode == "implicit"
    train = {
        "algorithm": "bambi",
        "problem": problem,
        "hypergradient": mode,
        "loss": "softmax" if problem == "hyper_representation" else "logistic",
        "regularisation": 0.02,
        "coefficients": "feature",
        "intercept": False,
        "upper": {"steps": steps, "batch": 90, "optimiser": {"step": 20.0 if problem == "hyper_parameters" else 0.2}},
        "lower": {"solver": "newton", "steps": 10, "batch": 120, "averaging": False}
        if implicit
        else {"solver": "sgd", "steps": 4, "batch": 120, "optimiser": {"step": 0.3}},
        "zeroth_order": {"directions": 3, "smoothing": 1e-3},
        "implicit": {"rounds": 40, "newton_rounds": 40, "tolerance": 1e-13, "adjoint_clip": None},
    }
    if problem == "hyper_representation":
        train["model"] = {"kind": "mlp", "hidden": [4], "out": 3, "activation": "tanh"}
    return yaml.safe_dump(
        {
            "name": "lossless",
            "seed": 21,
            "dtype": "float64",
            "table": "cancer",
            "parties": list(parties),
            "train": train,
            # Conjugate gradients end where r·z reaches the ring's last digit: a residual is known to 2^(−f/2).
            "privacy": {"labels": {"mechanism": "off"}, "aggregation": {"fraction_bits": 44}},
            "evaluate_every": 0,
            "checkpoint_every": 0,
        }
    )


def between_processes(federation, client, text):
    """x and y of every party, as each has saved them."""
    run = client.start(text)
    run.result()
    x, y = [], []
    for entry in parse_spec(text).parties:
        model = Store(federation.directory / "state" / entry.name).load_model(run.run_id)
        y.append(model.pop("y"))
        x.append(torch.cat([model[name].reshape(-1) for name in sorted(model)]))
    return x, y


def on_pooled_data(data, text):
    """The same steps with every party's features side by side."""
    spec = parse_spec(text)
    features = [load_table(TableRequest(data / "cancer" / f"{entry.name}.parquet")).features for entry in spec.parties]
    named, y = trained(spec, features, load_labels(data / "cancer" / "labels.parquet").values)
    return [torch.cat([part[name].reshape(-1) for name in sorted(part)]) for part in named], y


@pytest.mark.parametrize("parties", [2, 3, 4])
@pytest.mark.parametrize("mode", MODES)
def test_one_step_between_processes_is_the_step_on_pooled_data(federation, client, data, mode, parties):
    text = spec_of(mode, "hyper_representation", PARTIES[:parties], steps=1)
    x, y = between_processes(federation, client, text)
    pooled_x, pooled_y = on_pooled_data(data, text)
    assert relative_error(y, pooled_y) < 1e-6
    assert relative_error(x, pooled_x) < 1e-6


@pytest.mark.parametrize("problem", ["hyper_representation", "hyper_parameters"])
@pytest.mark.parametrize("mode", MODES)
def test_training_between_processes_ends_where_training_on_pooled_data_ends(federation, client, data, mode, problem):
    text = spec_of(mode, problem, PARTIES, steps=2 if mode == "implicit" else 6)
    x, y = between_processes(federation, client, text)
    pooled_x, pooled_y = on_pooled_data(data, text)
    assert relative_error(y, pooled_y) < 1e-5
    assert relative_error(x, pooled_x) < 1e-5
