"""Label inference by a party on what it really receives over gRPC.

The labels are drawn apart from the features, so that nothing but the message stream can tell them. With y at zero the
logits are zero, and the adversary knows them exactly.
"""

import json
import shutil
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import yaml

from parley.attacks.labels import (
    View,
    cap,
    clustering_attack,
    margin,
    norm_attack,
    replay_attack,
    residual_attack,
    sign_attack,
)
from parley.client import RequestRefused
from parley.numerics.losses import Softmax
from parley.privacy.label_mechanisms import choose_mechanism
from parley.privacy.target_bins import BinnedTargets, Bins
from parley.protocols.bambi.columns import completed
from parley.testing.federations import ForkedFederation

RECORDS, CLASSES = 4000, 10
KNOWN = 400
"""Labels that the adversary knows from elsewhere; they are not counted."""
ATTACKS = {
    "norm": norm_attack,
    "sign": sign_attack,
    "clustering": clustering_attack,
    "residual to line": residual_attack,
    "bit-exact replay": replay_attack,
}


@pytest.fixture(scope="module")
def truth():
    return np.random.default_rng(4).integers(0, CLASSES, RECORDS)


@pytest.fixture(scope="module")
def eavesdropping(tmp_path_factory, truth):
    directory = tmp_path_factory.mktemp("curious")
    rng, ids = np.random.default_rng(1), np.arange(RECORDS)
    for name in ("bob", "eve"):
        table = {"id": ids} | {f"{name}{i}": rng.standard_normal(RECORDS) for i in range(3)}
        pyarrow.parquet.write_table(pa.table(table), directory / f"{name}.parquet")
    pyarrow.parquet.write_table(pa.table({"id": ids, "label": truth}), directory / "labels.parquet")
    (directory / "link.parquet").symlink_to(directory / "labels.parquet")
    shutil.copy(directory / "labels.parquet", directory / "copy.parquet")
    # a regression's labels: the classes once more, as points of a range
    pyarrow.parquet.write_table(pa.table({"id": ids, "label": truth / (CLASSES - 1)}), directory / "numbers.parquet")
    recording = directory / "recording"
    recording.mkdir()
    federation = ForkedFederation(
        directory,
        {name: {"train": {"path": directory / f"{name}.parquet"}} for name in ("bob", "eve")},
        {
            "train": {"path": directory / "labels.parquet"},
            "numbers": {"path": directory / "numbers.parquet"},
            "again": {"path": directory / "link.parquet"},
            "copy": {"path": directory / "copy.parquet"},
        },
        modules={"eve": "tests.integration.recording_party"},
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RECORDING", str(recording))
        with federation, federation.connect() as client:
            yield client, recording


@pytest.fixture(scope="module")
def account(eavesdropping):
    """Reads the account of the labels as their owner does, in a process of its own."""
    _, recording = eavesdropping
    config = recording.parent / "coordinator.yaml"

    def read(name="train"):
        command = [sys.executable, "-m", "parley", "ledger", "datasets", "--config", str(config), "--json"]
        shown = subprocess.run(command, capture_output=True, text=True, check=True)
        return next(found for found in json.loads(shown.stdout)["datasets"] if found["data set"] == name)

    return read


def released(eavesdropping, mechanism, epsilon, releases, bins=None, labels="train"):
    """θ̃ of every record, as eve received it in a run with so many releases."""
    client, recording = eavesdropping
    for old in recording.glob("*.npy"):
        old.unlink()
    content = {
        "name": "target",
        "labels": labels,
        "parties": ["bob", "eve"],
        "split": {"lower": f"0:{RECORDS}", "upper": "lower", "test": 0},
        "train": {
            "algorithm": "bambi",
            "hypergradient": "zeroth_order",
            "model": {"kind": "identity"},
            "upper": {"steps": 0},
            "lower": {"solver": "sgd", "warmup_steps": releases, "optimiser": {"step": 1e-30}},
        },
        "privacy": {"labels": {"mechanism": mechanism, "epsilon": epsilon}},
    }
    if bins is not None:
        content["labels"], content["train"]["loss"] = "numbers", "squared"
        content["privacy"]["labels"] |= {"bins": bins} if mechanism == "once" else {}
    client.start(yaml.safe_dump(content)).result()
    received = np.stack([np.load(path)[0] for path in sorted(recording.glob("*.npy"))])
    assert received.shape == (releases, RECORDS, CLASSES - 1 if bins is None else 1)
    return completed(received, CLASSES if bins is None else 1) * RECORDS


def share_of_right_guesses(gradients, mechanism, truth, attack):
    loss = mechanism.training_loss(Softmax(CLASSES)) if mechanism else Softmax(CLASSES)
    view = View(gradients, np.zeros_like(gradients), mechanism, loss, truth[:KNOWN])
    guesses = attack(view, np.random.default_rng(0))
    return float((guesses[KNOWN:] == truth[KNOWN:]).mean())


@pytest.mark.parametrize(
    ("mechanism", "epsilon", "releases"), [("once", 1.0, 6), ("once", 3.0, 6), ("per_step", 0.5, 4)]
)
def test_no_attack_passes_the_cap_on_the_real_message_stream(eavesdropping, truth, mechanism, epsilon, releases):
    gradients = released(eavesdropping, mechanism, epsilon, releases)
    noise = choose_mechanism(mechanism, CLASSES, epsilon)
    total = epsilon * (releases if mechanism == "per_step" else 1)
    limit = cap(total, CLASSES)
    for name, attack in ATTACKS.items():
        right = share_of_right_guesses(gradients, noise, truth, attack)
        assert right <= limit + margin(limit, RECORDS - KNOWN), f"{name}: {right:.3f} above {limit:.3f}"


def test_without_label_privacy_the_same_stream_gives_every_label_away(eavesdropping, truth):
    gradients = released(eavesdropping, "off", 1.0, 1)
    assert share_of_right_guesses(gradients, None, truth, sign_attack) == 1.0
    assert share_of_right_guesses(gradients, None, truth, clustering_attack) > 0.9


def test_runs_at_one_epsilon_say_together_what_one_of_them_says(eavesdropping, truth, account):
    released(eavesdropping, "once", 1.0, 1)
    before = account()["ε spent"]
    seen = np.concatenate([released(eavesdropping, "once", 2.0, 1) for _ in range(5)])
    assert all((later == seen[0]).all() for later in seen[1:]), "the same noise, to the last bit"
    limit = cap(2.0, CLASSES)
    for name, attack in ATTACKS.items():
        right = share_of_right_guesses(seen, choose_mechanism("once", CLASSES, 2.0), truth, attack)
        assert right <= limit + margin(limit, RECORDS - KNOWN), f"{name}: {right:.3f} above {limit:.3f}"
    after = account()
    assert after["ε spent"] - before == pytest.approx(2.0)
    assert list(after["by run"].values())[-5:] == pytest.approx([2.0, 0, 0, 0, 0])
    assert after["chain"] == "whole"


@pytest.mark.parametrize("name", ["again", "copy"])
def test_another_name_or_a_copy_of_the_label_file_draws_the_same_noise_and_has_the_same_budget(
    eavesdropping, account, name
):
    first = released(eavesdropping, "once", 2.0, 1)
    before = account()
    np.testing.assert_array_equal(released(eavesdropping, "once", 2.0, 1, labels=name), first)
    after = account()
    assert after["ε spent"] == before["ε spent"]
    assert list(after["by run"].values())[-1] == 0
    with pytest.raises(RequestRefused, match=r"past its budget of 10 .*BUDGET_EXHAUSTED"):
        released(eavesdropping, "once", 9.5, 1, labels=name)


def test_a_run_past_the_budget_of_the_labels_releases_nothing(eavesdropping, account):
    released(eavesdropping, "once", 2.0, 1)
    before, (_, recording) = account(), eavesdropping
    with pytest.raises(RequestRefused, match=r"over all runs, past its budget of 10 .*BUDGET_EXHAUSTED"):
        released(eavesdropping, "once", 9.5, 1)
    assert not list(recording.glob("*.npy"))
    assert account() == before


def test_labels_that_changed_after_they_were_released_are_refused(eavesdropping, truth, account):
    _, recording = eavesdropping
    path, changed = recording.parent / "labels.parquet", truth.copy()
    changed[:3] = (changed[:3] + 1) % CLASSES
    original = path.read_bytes()
    released(eavesdropping, "once", 2.0, 1)
    pyarrow.parquet.write_table(pa.table({"id": np.arange(RECORDS), "label": changed}), path)
    before = account()
    try:
        with pytest.raises(RequestRefused, match="3 records of 'train' were released with another label"):
            released(eavesdropping, "once", 2.0, 1)
    finally:
        path.write_bytes(original)
    assert not list(recording.glob("*.npy"))
    assert account() == before


def test_numbers_on_bins_are_guessed_no_better_than_their_epsilon_allows(eavesdropping, truth, account):
    """With h at zero a gradient is the target itself; labels are points of the range, so that nothing is rounded."""
    epsilon, bins = 2.0, {"low": 0.0, "high": 1.0, "points": CLASSES}
    seen = -np.concatenate([released(eavesdropping, "once", epsilon, 2, bins) for _ in range(2)])[:, :, 0]
    assert (seen == seen[0]).all(), "the same noise in every release and run, to the last bit"
    mechanism = BinnedTargets(epsilon, Bins(0.0, 1.0, CLASSES))
    points = np.abs(seen[0][:, None] - mechanism.targets).argmin(axis=1)  # the likeliest label is the point that came
    right, limit = float((points == truth).mean()), cap(epsilon, CLASSES)
    assert abs(right - limit) <= margin(limit, RECORDS)  # the bound holds, and the noise is no larger than it must be
    error = np.sqrt(mechanism.mean_variance() * 4 / RECORDS)
    for label in range(CLASSES):  # unbiased for every label: what training averages
        rows = truth == label
        assert abs(seen[0][rows].mean() - label / (CLASSES - 1)) < 5 * error * np.sqrt(RECORDS / rows.sum())
    assert account("numbers")["ε spent"] == pytest.approx(epsilon)
    exact = -released(eavesdropping, "off", 1.0, 1, bins)[0, :, 0]
    np.testing.assert_allclose(exact, truth / (CLASSES - 1), atol=1e-6)  # without it, every label
