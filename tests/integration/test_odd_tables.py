"""Tables as organisations have them: from exploring to a prediction, with nothing but what their owners declare."""

import datetime as dt
import decimal
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from parley.cli import app
from parley.client import RequestRefused
from parley.testing.federations import ForkedFederation

PARTIES, ROWS = ("bank", "shop", "telco"), 1500
GERMAN = {
    "delimiter": ";",
    "decimal": ",",
    "thousands": ".",
    "exclude": ["leer"],
    "preprocess": {
        "missing": "median",
        "scale": "standard",
        "categorical": {"columns": ["ist Kunde"]},
        "dates": {"columns": ["eröffnet am"], "format": "%d.%m.%Y", "cycles": ["year"]},
        "indicators": ["lückenhaft"],
    },
}
PARQUET = {
    "preprocess": {
        "missing": "mean",
        "scale": "standard",
        "categorical": {"columns": ["product code", "grade"], "max_categories": 6},
        "dates": {"columns": ["first order", "last order"], "cycles": ["day", "week"]},
        "indicators": ["grade"],
    }
}
ENGLISH = {
    "thousands": ",",
    "preprocess": {
        "missing": "most_frequent",
        "scale": "standard",
        "categorical": {"columns": ["town"], "encoding": "hashed", "max_categories": 8},
        "dates": {"columns": ["since"]},
    },
}
SPEC = """
name: odd
table: customers
alignment: common
parties: [bank, shop, telco]
split: {{lower: 0.6, upper: 0.1, test: 0.3}}
dtype: float64
{extra}
train: {train}
privacy: {{labels: {{mechanism: "off"}}}}
"""


def german(folder, generator, signal):
    """A semicolon between fields, a comma before fractions, and a row that stands there twice."""
    opened = [dt.date(1999, 1, 1) + dt.timedelta(days=int(day)) for day in generator.integers(0, 9000, ROWS)]
    lines = ["id;Kontostand (€);eröffnet am;ist Kunde;immer 1;lückenhaft;große Zahl;leer"]
    for row in range(ROWS):
        balance = f"{1e6 + 1e5 * signal[row]:,.2f}".replace(",", " ").replace(".", ",").replace(" ", ".")
        known = f"{generator.normal():.3f}".replace(".", ",") if generator.random() < 0.08 else ""
        customer = generator.choice(["ja", "nein", ""])
        lines.append(f"{row};{balance};{opened[row]:%d.%m.%Y};{customer};1;{known};{10**18 + row};")
    lines.append(lines[7])
    lines.append(";0;01.01.2000;ja;1;;5;")
    (folder / "bank.csv").write_text("\n".join(lines) + "\n")


def typed(folder, generator):
    """What a warehouse exports: dictionaries, decimals, dates, times with a zone, truth values."""
    codes = pa.array([f"code {n}" for n in generator.zipf(1.6, ROWS) % 1000]).dictionary_encode()
    grade = [None if n == 3 else ("12", "n/a", "high")[n] for n in generator.integers(0, 4, ROWS)]
    days = [dt.date(2015, 1, 1) + dt.timedelta(days=int(n)) for n in generator.integers(0, 3000, ROWS)]
    times = [None if n % 5 == 0 else dt.datetime(2022, 1, 1, tzinfo=dt.UTC) + dt.timedelta(minutes=int(n)) for n in
             generator.integers(0, 400_000, ROWS)]  # fmt: skip
    prices = [decimal.Decimal(int(n)) / 100 for n in generator.integers(0, 10**6, ROWS)]
    table = {
        "id": pa.array(range(ROWS), pa.int64()),
        "product code": codes,
        "price": pa.array(prices, pa.decimal128(12, 2)),
        "price abroad": pa.array([round(float(price) * 1.1, 3) for price in prices]),  # nearly the same column again
        "first order": pa.array(days, pa.date32()),
        "last order": pa.array(times, pa.timestamp("ms", tz="Europe/Oslo")),
        "loyal": pa.array((generator.random(ROWS) < 0.5).tolist(), pa.bool_()),
        "grade": pa.array(grade),
    }
    pq.write_table(pa.table(table), folder / "shop.parquet")


def english(folder, generator):
    """Thousands in quotes, a thousand towns, times with gaps."""
    lines = ["id,income,town,since"]
    for row in range(ROWS):
        since = "" if row % 9 == 0 else f"2019-{1 + row % 12:02d}-03T{row % 24:02d}:30:00"
        lines.append(f'{row},"{int(generator.integers(10_000, 2_000_000)):,}",town {generator.integers(1000)},{since}')
    (folder / "telco.csv").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="module")
def odd(tmp_path_factory):
    """Three parties with odd tables, and a label that one in sixty has, one in thirty of which nobody knows."""
    folder, generator = tmp_path_factory.mktemp("odd"), np.random.default_rng(5)
    signal = generator.normal(size=ROWS)
    german(folder, generator, signal)
    typed(folder, generator)
    english(folder, generator)
    failed = (signal + generator.normal(size=ROWS) * 0.3 > 2.2).astype(int)
    known = [str(value) if row % 30 else "" for row, value in enumerate(failed)]
    (folder / "labels.csv").write_text("id,label\n" + "".join(f"{row},{text}\n" for row, text in enumerate(known)))
    tables = {
        "bank": {"customers": {"path": folder / "bank.csv", **GERMAN}, "plain": {"path": folder / "bank.csv"}},
        "shop": {"customers": {"path": folder / "shop.parquet", **PARQUET}, "plain": {"path": folder / "shop.parquet"}},
        "telco": {"customers": {"path": folder / "telco.csv", **ENGLISH}, "plain": {"path": folder / "telco.csv"}},
    }
    labels = {"customers": {"path": folder / "labels.csv", "unlabelled": "drop"}}
    labels["plain"] = {"path": folder / "labels.csv"}
    policy = {"coefficients": "columns", "sums_per_row": "unbounded", "correlations": "all"}
    directory = tmp_path_factory.mktemp("federation")
    with ForkedFederation(directory, tables, labels, policy=policy) as local, local.connect() as client:
        client.align("common", list(PARTIES), "customers", duplicates="first")
        yield local, client


def start(client, train, extra=""):
    return client.start(SPEC.format(train=train, extra=extra))


def test_odd_tables_go_the_whole_way_from_exploring_to_a_scorecard_and_predictions(odd):
    local, client = odd
    explored = start(client, "{algorithm: explore, bins: 4, smallest_cell: 8, against_label: true, correlations: true}")
    explored.result()
    inflated = [
        column["vif"]
        for told in explored.coefficients().values()
        for column in told.figures.values()
        if "vif" in column
    ]
    assert min(inflated) >= 1  # of each category's columns, which add up to one, the last has none
    assert max(inflated) < 1e6
    figures = {(party, column) for party, told in explored.coefficients().items() for column in told.figures}
    assert ("bank", "Kontostand (€)") in figures
    assert ("bank", "eröffnet am:year sin") in figures
    assert ("bank", "lückenhaft=(missing)") in figures
    assert ("shop", "grade=(missing)") in figures
    assert ("shop", "product code=(other)") in figures
    assert ("telco", "town#0") in figures
    assert not any(column == "leer" for _, column in figures)
    regression = start(client, "{algorithm: glm, family: logistic, penalty: {strength: 0.001}}")
    assert regression.result()["test auc"] > 0.85
    card = start(
        client, "{algorithm: glm, family: logistic, penalty: {strength: 0.001}}", f"binned_by: {explored.run_id}"
    )
    assert card.result()["test auc"] > 0.8
    shown = CliRunner().invoke(app, ["scorecard", card.run_id, "--address", local.addresses["coordinator"],
                                     "--identity", str(local.directory / "certificates" / "client")])  # fmt: skip
    assert shown.exit_code == 0, shown.output
    scores = regression.predict().scores
    assert np.isfinite(scores).all()
    for options in (["--columns"], ["--config", str(local.directory / "bank.yaml")]):  # of rows that were aligned
        place = ["--address", local.addresses["coordinator"], "--identity", str(local.identity("client"))]
        ranked = CliRunner().invoke(app, ["contribution", regression.run_id, *options, *place, "--json"])
        assert ranked.exit_code == 0, ranked.output
        assert json.loads(ranked.stdout)[0]["column"] == "Kontostand (€)"


@pytest.mark.parametrize(
    "train",
    [
        "{algorithm: bambi, loss: logistic, model: {kind: mlp, hidden: [4], out: 2}, upper: {steps: 4}}",
        "{algorithm: asysqn, steps: 40, batch: 128, labels_at: coordinator}",
    ],
)
def test_odd_tables_train_other_models_too(odd, train):
    _, client = odd
    run = start(client, train)
    run.result()
    assert np.isfinite(run.predict().scores).all()


def test_undeclared_every_oddity_is_one_sentence_that_says_what_to_declare(odd):
    local, client = odd
    train = "{algorithm: glm, family: logistic}"
    with pytest.raises(RequestRefused, match="DATA_INVALID"):
        client.start(SPEC.format(train=train, extra="").replace("customers", "plain").replace("alignment: common", ""))
    found = {}
    for party in PARTIES:
        shown = CliRunner().invoke(app, ["doctor", "--config", str(local.directory / f"{party}.yaml"), "--json"])
        found[party] = next(one for one in json.loads(shown.output) if one["subject"] == "table plain")
    assert 'Write `delimiter: ";"`' in found["bank"]["remedy"] + found["bank"]["finding"]
    assert "columns of words ('product code', 'first order'" in found["shop"]["finding"]
    assert "missing values ('last order', 'grade')" in found["shop"]["finding"]
    assert "preprocess" in found["telco"]["finding"] + found["telco"]["remedy"]
