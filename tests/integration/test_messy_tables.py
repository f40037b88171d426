"""Messy tables, from files and databases, train as tables that were cleaned by hand would."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from parley.client import RequestRefused
from parley.numerics.streams import stream
from parley.services.party.checkpoints import Store
from parley.spec.parsing import parse_spec
from parley.spec.rows import divide
from parley.testing.federations import ForkedFederation
from tests.integration.conftest import spec

PARTIES, ROWS = ("bank", "shop"), 240
PREPROCESS = {"missing": "median", "scale": "standard", "categorical": {"columns": ["city"]}}
SETTINGS = {
    "table": "messy",
    "parties": list(PARTIES),
    "dtype": "float64",
    "split": {"lower": 0.5, "upper": 0.25, "test": 0.25},
    "train__loss": "logistic",
    "train__model": {"kind": "mlp", "hidden": [4], "out": 3},
    "train__upper__steps": 8,
    "privacy__labels__mechanism": "off",
}


def messy_columns(seed):
    """Numbers of unlike scales with gaps, and a text column with gaps; rows in the order of ids."""
    generator = np.random.default_rng(seed)
    numbers = generator.normal(size=(ROWS, 3)) * [1, 1000, 0.001] + [0, 500, 7]
    city = generator.choice(["Oslo", "Bergen", "Tromsø"], ROWS).astype(object)
    signal = np.nan_to_num(numbers[:, 0]) + (city == "Oslo")
    numbers[generator.random(numbers.shape) < 0.1] = np.nan
    city[generator.random(ROWS) < 0.1] = None
    return numbers, city, signal


def cleaned(numbers, city, rows):
    """The same by hand, with figures of `rows` alone."""
    imputer = SimpleImputer(strategy="median").fit(numbers[rows])
    scaler = StandardScaler().fit(imputer.transform(numbers[rows]))
    frequent = SimpleImputer(strategy="most_frequent", missing_values=None).fit(city[rows].reshape(-1, 1))
    filled = frequent.transform(city.reshape(-1, 1))
    encoder = OneHotEncoder(sparse_output=False, handle_unknown="ignore").fit(filled[rows])
    return np.concatenate([scaler.transform(imputer.transform(numbers)), encoder.transform(filled)], axis=1)


def write(path, columns):
    pq.write_table(pa.table({"id": np.arange(len(next(iter(columns.values())))), **columns}), path)


@pytest.fixture(scope="module")
def messy_federation(tmp_path_factory):
    """Two parties with a messy table, the same cleaned by hand, and a fresh one with gaps and new categories."""
    directory = tmp_path_factory.mktemp("messy")
    run = parse_spec(spec(**SETTINGS))
    rows = divide(run.split, ROWS, stream(run.seed, "split")).lower
    tables, score = {}, np.zeros(ROWS)
    for seed, party in enumerate(PARTIES):
        numbers, city, signal = messy_columns(seed)
        score += signal
        named = {f"n{i}": pa.array(column, from_pandas=True) for i, column in enumerate(numbers.T)}
        write(directory / f"{party}-messy.parquet", {**named, "city": city})
        write(
            directory / f"{party}-clean.parquet",
            {f"c{i}": column for i, column in enumerate(cleaned(numbers, city, rows).T)},
        )
        fresh = {f"n{i}": pa.array([0.5, None, 3.0]) for i in range(3)}
        write(directory / f"{party}-fresh.parquet", {**fresh, "city": ["Oslo", "Atlantis", None]})
        tables[party] = {
            "messy": {"path": directory / f"{party}-messy.parquet", "preprocess": PREPROCESS},
            "undeclared": {"path": directory / f"{party}-messy.parquet"},
            "clean": {"path": directory / f"{party}-clean.parquet"},
            "fresh": {"path": directory / f"{party}-fresh.parquet"},
            "closed": {"path": directory / f"{party}-fresh.parquet"},
        }
    write(directory / "labels.parquet", {"label": (score > np.median(score)).astype(int)})
    labels = {name: {"path": directory / "labels.parquet"} for name in ("messy", "clean", "undeclared")}
    policy = {"tables": ["messy", "clean", "undeclared", "fresh"]}
    with ForkedFederation(tmp_path_factory.mktemp("federation"), tables, labels, policy=policy) as local:
        yield local


@pytest.fixture
def messy_client(messy_federation):
    with messy_federation.connect() as client:
        yield client


def model_of(federation, party, run):
    return Store(federation.directory / "state" / party).load_model(run.run_id)


def test_a_messy_federation_trains_the_model_of_tables_cleaned_by_hand(messy_federation, messy_client):
    messy = messy_client.start(spec(**SETTINGS))
    by_hand = messy_client.start(spec(**SETTINGS | {"table": "clean"}))
    assert messy.result()["test accuracy"] > 0.6
    by_hand.result()
    for party in PARTIES:
        found, expected = model_of(messy_federation, party, messy), model_of(messy_federation, party, by_hand)
        for name, tensor in expected.items():
            np.testing.assert_allclose(found[name].numpy(), tensor.numpy(), rtol=0, atol=1e-9)
    scores, expected = messy.predict().scores, by_hand.predict().scores
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-9)


def test_predictions_on_a_fresh_table_use_the_figures_of_the_training_rows(messy_federation, messy_client):
    """A table of three rows has other medians and lacks categories; what counts is what the run has saved."""
    run = messy_client.start(spec(**SETTINGS))
    run.result()
    prediction = run.predict("fresh")
    assert prediction.ids == ["#0", "#1", "#2"], "nobody but the parties knows their ids"
    alone = [run.predict("fresh", [identity]).scores[0, 0] for identity in ("0", "1", "2")]
    np.testing.assert_allclose(alone, prediction.scores[:, 0], rtol=0, atol=1e-9)
    saved = messy_federation.directory / "state" / "bank" / "runs" / run.run_id / "preprocessing.json"
    content = json.loads(saved.read_bytes()[:-32])
    assert content["categories"][0]["outputs"] == ["city=Bergen", "city=Oslo", "city=Tromsø"]
    assert [entry["column"] for entry in content["numbers"]] == ["n0", "n1", "n2"]


def test_a_resumed_run_keeps_its_figures_though_the_owner_declares_others_by_now(messy_federation, messy_client):
    settings = SETTINGS | {"train__upper__steps": 60}
    undisturbed = messy_client.start(spec(**settings))
    undisturbed.result()
    run = messy_client.start(spec(**settings))
    for event in run.watch():
        if event.step >= 4:
            break
    run.cancel()
    config = messy_federation.directory / "bank.yaml"
    declared = config.read_text()
    config.write_text(declared.replace("scale: standard", "scale: minmax").replace("missing: median", "missing: mean"))
    assert config.read_text() != declared
    try:
        messy_federation.kill("bank")
        messy_federation.restart("bank")
        run.resume().result()
    finally:
        config.write_text(declared)
        messy_federation.kill("bank")
        messy_federation.restart("bank")
    for party in PARTIES:
        found, expected = model_of(messy_federation, party, run), model_of(messy_federation, party, undisturbed)
        assert all(bool((found[name] == expected[name]).all()) for name in expected)


def test_without_a_declaration_messy_values_are_refused_and_the_log_says_what_to_declare(
    messy_federation, messy_client
):
    with pytest.raises(RequestRefused, match="DATA_INVALID"):
        messy_client.start(spec(**SETTINGS | {"table": "undeclared"}))
    # the first party to refuse ends the opening at the others
    log = "".join((messy_federation.directory / f"{party}.log").read_text() for party in PARTIES)
    assert "preprocess: {" in log
    assert "Tromsø" not in log


def test_the_policy_closes_tables_to_predictions_too(messy_client):
    run = messy_client.start(spec(**SETTINGS))
    run.result()
    with pytest.raises(RequestRefused, match="closed is not open"):
        run.predict("closed")


def test_a_federation_trains_from_postgresql_as_from_files(postgres_database, messy_federation, messy_client, tmp_path):
    """Both parties and the labels come from a database; the model equals that of the files bit for bit."""
    engine = sa.create_engine(postgres_database)
    tables = {}
    with engine.begin() as connection:
        for party in PARTIES:
            _copy(connection, f"{party}_rows", pq.read_table(messy_federation.tables[party]["messy"]["path"]))
            query = f"SELECT id, n0, n1, n2, city FROM {party}_rows"  # noqa: S608 (our own names)
            tables[party] = {"messy": {"url": postgres_database, "query": query, "preprocess": PREPROCESS}}
        _copy(connection, "labels", pq.read_table(messy_federation.labels["messy"]["path"]))
    engine.dispose()
    labels = {"messy": {"url": postgres_database, "table": "labels"}}
    from_files = messy_client.start(spec(**SETTINGS))
    from_files.result()
    with ForkedFederation(tmp_path, tables, labels) as local, local.connect() as client:
        run = client.start(spec(**SETTINGS))
        run.result()
        for party in PARTIES:
            found, expected = model_of(local, party, run), model_of(messy_federation, party, from_files)
            assert all(bool((found[name] == expected[name]).all()) for name in expected)


def _copy(connection, name, table):
    kinds = {pa.int64(): "BIGINT", pa.float64(): "DOUBLE PRECISION", pa.string(): "TEXT"}
    columns = ", ".join(f"{field.name} {kinds[field.type]}" for field in table.schema)
    connection.execute(sa.text(f"CREATE TABLE {name} ({columns})"))
    places = ", ".join(f":{column}" for column in table.column_names)
    connection.execute(sa.text(f"INSERT INTO {name} VALUES ({places})"), table.to_pylist())  # noqa: S608
