"""FedBiO and FedBiOAcc over real processes: four hospitals with rows and labels of their own."""

import csv
import hashlib
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import yaml
from safetensors.torch import load
from sklearn.datasets import load_digits

from parley.client import RequestRefused
from parley.experiments.fedbio_parties import Given
from parley.experiments.fedbio_parties import train as train_here
from parley.numerics.few_shot import sample_task
from parley.numerics.streams import stream
from parley.party.fedbio import steps as party
from parley.party.fedbio.hyper_parameters import HyperParameters
from parley.party.fedbio.hyper_representation import HyperRepresentation
from parley.party.fedbio.objectives import DataCleaning
from parley.party.fedbio.role import settings_of
from parley.protocols.fedbio.settings import FedbioSpec
from parley.services.coordinator.labels import LabelStore
from parley.services.party.config import TableConfig
from parley.services.party.tables import TableStore
from parley.simulation.many import simulate
from parley.spec.parsing import parse_spec
from parley.testing.federations import ForkedFederation

HOSPITALS = ("north", "south", "east", "west")
TRAINING, CHECKED, TEST, CLASSES = 200, 40, 60, 10


def hospital_rows(m: int) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Ids, pixels and labels of a hospital's tables; 40 % of its records carry a label drawn at random."""
    digits, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(5).permutation(len(labels))[m * 300 : (m + 1) * 300]
    parts = np.split(order, [TRAINING, TRAINING + CHECKED])
    names = ("truth", "checked", "test")
    tables = {
        name: (np.char.add(f"{name[0]}", np.char.zfill(rows.astype(str), 5)), digits[rows] / 16.0, labels[rows])
        for name, rows in zip(names, parts, strict=True)
    }
    generator = np.random.default_rng(m)
    ids, pixels, right = tables["truth"]
    given = right.copy()
    noisy = generator.choice(TRAINING, int(0.4 * TRAINING), replace=False)
    given[noisy] = generator.integers(0, CLASSES, len(noisy))
    return tables | {"records": (ids, pixels, given)}


def write(path, ids, pixels, labels, columns) -> dict[str, str]:
    content = {"id": ids, **dict(zip(columns, pixels.T, strict=True)), "label": labels}
    pa.parquet.write_table(pa.table(content), path)
    return {"path": str(path), "label": "label"}


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    directory = tmp_path_factory.mktemp("hospitals")
    columns = [f"p{i}" for i in range(64)]
    tables = {}
    for m, name in enumerate(HOSPITALS):
        rows = hospital_rows(m)
        tables[name] = {table: write(directory / f"{name}-{table}.parquet", *rows[table], columns) for table in rows}
        tables[name]["odd"] = write(
            directory / f"{name}-odd.parquet", *rows["records"], columns[::-1] if name == "east" else columns
        )
        unlabelled = {key: value for key, value in tables[name]["records"].items() if key != "label"}
        tables[name]["unlabelled"] = unlabelled
    policy = {"aggregations": ["pairwise", "two_tree", "plain"], "minimum_batch": 6, "minimum_evaluation": 6}
    with ForkedFederation(tmp_path_factory.mktemp("federation"), tables, {}, policy=policy) as local:
        yield local


@pytest.fixture
def client(federation):
    with federation.connect() as connected:
        yield connected


def spec(task=None, privacy=None, parties=HOSPITALS, **changes) -> str:
    """A small run; `changes` are fields of `train`, or of the run where they belong there."""
    outer = {"evaluate_every", "checkpoint_every", "table", "seed", "dtype"}
    content = {
        "name": "find-mislabelled",
        "seed": 7,
        "dtype": "float64",
        "table": "records",
        "parties": list(parties),
        "train": {
            "algorithm": "fedbio",
            "task": task or cleaning(),
            **{name: value for name, value in changes.items() if name not in outer},
        },
        "privacy": {"aggregation": privacy or {"kind": "pairwise"}},
        "evaluate_every": 0,
        "checkpoint_every": 5,
        "wait_seconds": 60,
    }
    return yaml.safe_dump(content | {name: value for name, value in changes.items() if name in outer})


def cleaning(**changes):
    classes = [str(label) for label in range(CLASSES)]
    task = {"kind": "data_cleaning", "classes": classes, "checked": "checked", "test": "test", "truth": "truth"}
    return task | changes


REPRESENTATION = {
    "kind": "hyper_representation", "ways": 3, "shots": 1, "queries": 2, "tasks": 2, "filters": 2, "layers": 2, "ink": 1
}  # fmt: skip


TUNING = {
    "kind": "hyper_parameters",
    "classes": [str(label) for label in range(CLASSES)],
    "validation": "checked",
    "test": "test",
}


def file_of(federation, run, name, party="north"):
    return federation.directory / "state" / party / "runs" / run.run_id / name


def model_of(federation, run, name="north"):
    return load(file_of(federation, run, "model.safetensors", name).read_bytes())


def bits(federation, run):
    """A digest of every party's model and ranked rows."""
    names = ("model.safetensors", "suspects.csv")
    files = [file_of(federation, run, name, hospital) for hospital in HOSPITALS for name in names]
    return [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]


def simulated(text: str) -> party.Blocks:
    """The same run in one process, without services, tables or masks: the first hospital's variables at the end."""
    run = parse_spec(text)
    train = run.settings(FedbioSpec)
    tasks = []
    for m, name in enumerate(HOSPITALS):
        rows = hospital_rows(m)
        if train.task.kind == "data_cleaning":
            (_, features, labels), (_, checked, right) = sorted_rows(*rows["records"]), sorted_rows(*rows["checked"])
            objective = DataCleaning(features, labels, checked, right, CLASSES)
            x, y = np.zeros(TRAINING), np.zeros(objective.lower_size)
        elif train.task.kind == "hyper_parameters":
            (_, features, labels), (_, checked, right) = sorted_rows(*rows["records"]), sorted_rows(*rows["checked"])
            objective = HyperParameters(features, labels, checked, right, CLASSES)
            x, y = np.full(64, np.log(0.01 / 0.99)), np.zeros(objective.lower_size)
        else:
            learner = HyperRepresentation(few_shot_tasks(name, run.seed, *rows["records"]), 3, 2, 2)
            x, y = learner.initial_upper(stream(run.seed, "fedbio/initial")), np.zeros(learner.lower_size)
            objective = learner
        tasks.append(Given(objective, x, y))
    some, settings = train.parties_per_round, settings_of(train)
    trained = train_here(tasks, settings, train.rounds, sampled=some, seed=run.seed, names=HOSPITALS)
    return trained.states[0].variables


def test_a_simulation_has_the_bits_of_the_federation(client, federation):
    text = spec(rounds=3, parties_per_round=3)
    run = client.start(text)
    run.result()
    stores = {
        name: TableStore({table: TableConfig(**fields) for table, fields in tables.items()})
        for name, tables in federation.tables.items()
    }
    models = simulate(parse_spec(text), stores, LabelStore({})).models
    for name, model in zip(HOSPITALS, models, strict=True):
        kept = model_of(federation, run, name)
        assert {key: value.numpy().tobytes() for key, value in model.items()} == {
            key: value.numpy().tobytes() for key, value in kept.items()
        }


def sorted_rows(ids, features, labels):
    order = np.argsort(ids)
    return ids[order], features[order], labels[order].astype(np.int64)


def few_shot_tasks(name, seed, *rows):
    _, pixels, labels = sorted_rows(*rows)
    enough = [label for label in range(CLASSES) if np.sum(labels == label) >= 3]
    each = min(np.sum(labels == label) for label in enough)
    inked = np.rint(pixels * 255).astype(np.uint8)
    images = np.stack([inked[labels == label][:each] for label in enough]).reshape(len(enough), each, 8, 8)
    generator = stream(seed, f"fedbio/{name}/tasks")
    return [sample_task(images, ways=3, shots=1, queries=2, generator=generator) for _ in range(2)]


def test_each_hospital_ends_with_a_ranked_list_of_its_own_suspicious_rows(client, federation):
    run = client.start(spec(rounds=60, evaluate_every=20))
    metrics = run.result()
    assert metrics["detection AUC"] > 0.85
    assert metrics["test error"] < 0.25
    for m, hospital in enumerate(HOSPITALS):
        rows = hospital_rows(m)
        wrong = dict(zip(rows["records"][0], rows["records"][2] != rows["truth"][2], strict=True))
        with file_of(federation, run, "suspects.csv", hospital).open() as file:
            ranked = list(csv.DictReader(file))
        assert sorted(row["id"] for row in ranked) == sorted(wrong)
        weights = [float(row["weight"]) for row in ranked]
        assert weights == sorted(weights)
        assert 0 < weights[0] < weights[-1] < 1
        assert np.mean([wrong[row["id"]] for row in ranked[:20]]) > 2 * np.mean(list(wrong.values()))
        assert file_of(federation, run, "weights.png", hospital).read_bytes().startswith(b"\x89PNG")
    kept = [path.name for path in (federation.directory / "state" / "coordinator").rglob("*") if path.is_file()]
    assert not any("suspects" in name or "weights" in name or "model" in name for name in kept)


@pytest.mark.parametrize("aggregation", ["pairwise", "two_tree", "plain"])
@pytest.mark.parametrize("accelerated", [False, True])
def test_federated_equals_one_process_masked_and_unmasked(client, federation, aggregation, accelerated):
    text = spec(rounds=2, accelerated=accelerated, privacy={"kind": aggregation})
    run = client.start(text)
    run.result()
    model = model_of(federation, run)
    y = np.concatenate([model["layers.0.weight"].numpy().ravel(), model["layers.0.bias"].numpy()])
    np.testing.assert_allclose(y, simulated(text).y, rtol=0, atol=1e-6)


@pytest.mark.parametrize("some", [None, 2])
def test_warm_rounds_by_processes_equal_one_process(client, federation, some):
    text = spec(rounds=8, warm_rounds=4, parties_per_round=some)
    run = client.start(text)
    figures = run.result()
    assert figures["rounds"] == 4 + 2 * 4 + 1 + 2, "4 warm rounds have one phase; a checkpoint, an evaluation, the end"
    model, alone = model_of(federation, run), simulated(text)
    y = np.concatenate([model["layers.0.weight"].numpy().ravel(), model["layers.0.bias"].numpy()])
    np.testing.assert_allclose(y, alone.y, rtol=0, atol=1e-6)
    assert np.std(alone.x) > 0.1, "weights have begun where the model put them"


@pytest.mark.parametrize("accelerated", [False, True])
def test_a_shared_backbone_is_learned_with_local_heads(client, federation, accelerated):
    text = spec(task=REPRESENTATION, rounds=2, accelerated=accelerated, neumann_terms=3)
    run = client.start(text)
    assert 0 <= run.result()["validation error"] <= 1
    models = [model_of(federation, run, hospital) for hospital in HOSPITALS]
    for model in models:
        np.testing.assert_array_equal(model["backbone"].numpy(), models[0]["backbone"].numpy())
    assert not np.array_equal(models[0]["heads"].numpy(), models[1]["heads"].numpy())
    np.testing.assert_allclose(models[0]["backbone"].numpy(), simulated(text).x, rtol=0, atol=1e-6)


@pytest.mark.parametrize("aggregation", ["pairwise", "two_tree"])
def test_shared_coefficients_are_the_same_everywhere_and_equal_one_process(client, federation, aggregation):
    text = spec(task=TUNING, rounds=3, privacy={"kind": aggregation})
    run = client.start(text)
    assert 0 <= run.result()["test error"] <= 1
    alone = simulated(text)
    for hospital in HOSPITALS:
        model = model_of(federation, run, hospital)
        np.testing.assert_allclose(model["coefficients"].numpy(), 1e-4 + 1 / (1 + np.exp(-alone.x)), rtol=0, atol=1e-6)
        y = np.concatenate([model["layers.0.weight"].numpy().ravel(), model["layers.0.bias"].numpy()])
        np.testing.assert_allclose(y, alone.y, rtol=0, atol=1e-6)
        with file_of(federation, run, "coefficients.csv", hospital).open() as file:
            named = {row["name"]: float(row["coefficient"]) for row in csv.DictReader(file)}
        assert list(named) == [f"p{i}" for i in range(64)]
        np.testing.assert_array_equal(list(named.values()), model["coefficients"].numpy())
    assert np.ptp(alone.x) > 1e-3


@pytest.mark.parametrize(("accelerated", "phases"), [(False, 1), (True, 2)])
def test_a_round_takes_one_phase_in_fedbio_and_two_in_fedbio_acc(client, accelerated, phases):
    run = client.start(spec(rounds=7, warm_rounds=0, accelerated=accelerated, checkpoint_every=0))
    evaluation_and_end = 2
    assert run.result()["rounds"] == 7 * phases + evaluation_and_end


def test_sampled_parties_make_the_sums_alone_and_the_others_wait(client, federation):
    text = spec(rounds=6, parties_per_round=2)
    run = client.start(text)
    run.result()
    model = model_of(federation, run)
    y = np.concatenate([model["layers.0.weight"].numpy().ravel(), model["layers.0.bias"].numpy()])
    np.testing.assert_allclose(y, simulated(text).y, rtol=0, atol=1e-6)


@pytest.mark.parametrize("victim", ["south", "coordinator"])
def test_a_killed_process_comes_back_and_the_run_ends_with_the_same_bits(client, federation, victim):
    text = spec(rounds=60, warm_rounds=14, parties_per_round=3, checkpoint_every=4)
    undisturbed = client.start(text)
    undisturbed.result()
    run = client.start(text)
    for event in run.watch():
        if event.step >= 12:
            break
    federation.kill(victim)
    federation.restart(victim)
    deadline = time.monotonic() + 90
    while run.refresh().state != "COMPLETED" and time.monotonic() < deadline:
        assert run.state in ("RUNNING", "PAUSED", "PENDING"), run.reason
        time.sleep(0.2)
    assert run.state == "COMPLETED"
    assert run.message.attempt >= 2
    assert bits(federation, run) == bits(federation, undisturbed)


def test_hospitals_with_other_columns_are_refused_before_the_run_starts(client):
    with pytest.raises(RequestRefused, match=r"east.*by name and order.*COLUMNS_DIFFER"):
        client.start(spec(table="odd"))


def test_a_table_without_labels_is_refused_by_name(client):
    with pytest.raises(RequestRefused, match=r"TABLE_UNKNOWN.*unlabelled.*has no labels"):
        client.start(spec(table="unlabelled"))


def test_a_table_that_a_hospital_lacks_is_refused_by_name(client):
    with pytest.raises(RequestRefused, match=r"TABLE_UNKNOWN.*verified"):
        client.start(spec(task=cleaning(checked="verified")))


def test_fewer_sampled_parties_than_a_sum_may_have_are_refused(client):
    with pytest.raises(RequestRefused, match=r"parties_per_round is 1"):
        client.start(spec(parties_per_round=1))


def test_a_joint_prediction_is_refused_with_what_to_do_instead(client):
    run = client.start(spec(rounds=1))
    run.result()
    with pytest.raises(RequestRefused, match=r"model that it has saved.*PREDICTION_REFUSED"):
        run.predict()
