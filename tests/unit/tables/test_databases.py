import sqlite3
import uuid
from decimal import Decimal

import numpy as np
import pytest
import sqlalchemy as sa

from parley.services.party.config import TableConfig
from parley.services.party.tables import TableStore
from parley.tables.databases import SqlSource, open_sql
from parley.tables.errors import (
    ColumnDuplicated,
    FeatureMissing,
    TableEmpty,
    TableNotFound,
    TableTooLarge,
    TableUnreadable,
)
from parley.tables.loading import TableRequest, load_labels, load_table


@pytest.fixture
def sqlite_url(tmp_path):
    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE customers (id TEXT, age INTEGER, spend REAL, city TEXT, label TEXT)")
        rows = [("10", 40, 2.5, "Oslo", "yes"), ("9", None, 4.5, None, "no"), ("2", 20, 6.5, "Bergen", "yes")]
        connection.executemany("INSERT INTO customers VALUES (?, ?, ?, ?, ?)", rows)
    connection.close()
    return f"sqlite:///{path}"


def test_a_query_gives_the_table_that_a_file_would(sqlite_url):
    source = SqlSource(sqlite_url, query="SELECT id, spend, 2 * spend AS twice FROM customers")
    table = load_table(TableRequest(source, dtype=np.float64))
    assert table.ids.tolist() == ["2", "9", "10"]
    assert table.columns == ["spend", "twice"]
    np.testing.assert_array_equal(table.features, [[6.5, 13], [4.5, 9], [2.5, 5]])
    labels = load_labels(SqlSource(sqlite_url, table="customers"))
    assert (labels.classes, labels.values.tolist()) == (("no", "yes"), [1, 0, 1])


def test_null_is_a_missing_value(sqlite_url):
    source = SqlSource(sqlite_url, table="customers")
    with pytest.raises(FeatureMissing, match=r"table customers\), column 'age'.*preprocess"):
        load_table(TableRequest(source, columns=["age"]))
    table = load_table(TableRequest(source, columns=["age", "city"], categorical=["city"], missing=True))
    np.testing.assert_array_equal(table.features[:, 0], [20, np.nan, 40])
    assert table.texts["city"].tolist() == ["Bergen", None, "Oslo"]


@pytest.mark.parametrize(
    ("source", "refusal", "text"),
    [
        ({"query": "SELECT * FROM nowhere"}, TableUnreadable, "no such table"),
        ({"query": "SELECT id, age, age FROM customers"}, ColumnDuplicated, "AS"),
        ({"query": "SELECT * FROM customers WHERE 0"}, TableEmpty, "no rows"),
        ({"table": "customers", "most_rows": 2}, TableTooLarge, "most_rows"),
        ({"table": "customers", "most_bytes": 8}, TableTooLarge, "most_bytes"),
        ({"query": "DELETE FROM customers"}, TableUnreadable, "readonly"),
        ({"query": "DROP TABLE customers"}, TableUnreadable, "readonly"),
    ],
)
def test_what_a_database_cannot_give_is_refused_by_name(sqlite_url, source, refusal, text):
    with pytest.raises(refusal, match=text):
        open_sql(SqlSource(sqlite_url, **source), ["id"], None)
    assert open_sql(SqlSource(sqlite_url, table="customers"), ["id"], None).rows == 3


def test_a_database_file_that_is_not_there_is_not_made(tmp_path):
    with pytest.raises(TableNotFound):
        open_sql(SqlSource(f"sqlite:///{tmp_path}/no.db", table="t"), ["id"], None)
    assert not (tmp_path / "no.db").exists()


def test_rows_of_a_database_are_read_again_after_a_while(sqlite_url, tmp_path):
    fields = {"url": sqlite_url, "query": "SELECT id, spend FROM customers"}
    lasting = TableStore({"t": TableConfig(**fields, refresh_seconds=1e9)})
    fresh = TableStore({"t": TableConfig(**fields, refresh_seconds=0)})
    assert len(lasting.load("t")) == len(fresh.load("t")) == 3
    with sqlite3.connect(tmp_path / "shop.db") as connection:
        connection.execute("DELETE FROM customers WHERE id = '9'")
    connection.close()
    assert (len(lasting.load("t")), len(fresh.load("t"))) == (3, 2)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"url": "postgresql+psycopg://u:s3cret@h/d", "table": "t"}, "password_env"),
        ({"url": "postgresql+psycopg://u@h/d?password=s3cret", "table": "t"}, "password_env"),
        ({"url": "postgresql+psycopg://u@h/d"}, "`query` or `table`"),
        ({"url": "nonsense", "table": "t"}, "SQLAlchemy URL"),
        ({"path": "a.csv", "url": "sqlite:///a.db", "table": "t"}, "either `path`"),
        ({"path": "a.csv", "query": "SELECT 1"}, "give `url`"),
        ({}, "either `path`"),
    ],
)
def test_a_source_that_cannot_be_meant_is_refused_and_no_password_is_repeated(tmp_path, fields, text):
    import yaml

    from parley.services.party.config import PartyConfig
    from parley.services.wire.configuration import ConfigInvalid, load_config

    config = {
        "name": "a",
        "identity": "i",
        "state": "s",
        "tables": {"t": fields},
        "policy": {"coordinators": ["c"], "algorithms": ["bambi"]},
    }
    (tmp_path / "party.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(ConfigInvalid) as refusal:
        load_config(tmp_path / "party.yaml", PartyConfig)
    assert text in str(refusal.value)
    assert "s3cret" not in str(refusal.value)


def test_the_password_comes_from_the_environment_or_a_file_and_is_in_no_message(monkeypatch, tmp_path):
    from parley.tables.databases import _engine

    monkeypatch.setenv("SHOP_PASSWORD", "s3cret")
    (tmp_path / "password").write_text("s3cret\n")
    url = "postgresql+psycopg://someone@127.0.0.1:1/shop?connect_timeout=2"
    for given in ({"password_env": "SHOP_PASSWORD"}, {"password_file": tmp_path / "password"}):
        source = SqlSource(url, table="t", **given)
        assert _engine(source).url.password == "s3cret"  # noqa: S105
        with pytest.raises(TableUnreadable) as refusal:
            load_table(TableRequest(source))
        texts = [str(refusal.value), refusal.value.without_values, repr(refusal.value), str(source), repr(source)]
        assert not any("s3cret" in text for text in texts)
        assert "postgresql://127.0.0.1:1/shop (table t)" in texts[0]
    with pytest.raises(TableUnreadable, match="no variable NOWHERE_SET"):
        load_table(TableRequest(SqlSource(url, table="t", password_env="NOWHERE_SET")))  # noqa: S106


def test_postgresql_is_read_for_real(postgres_database):
    """Every type that a feature or an id may have, nulls, a schema, and a transaction that cannot write."""
    engine, identities = sa.create_engine(postgres_database), [uuid.UUID(int=number) for number in range(4)]
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE SCHEMA crm"))
        columns = "id UUID, age SMALLINT, price NUMERIC(9,2), share DOUBLE PRECISION, member BOOLEAN, city TEXT"
        connection.execute(sa.text(f"CREATE TABLE crm.customers ({columns})"))
        insert = sa.text("INSERT INTO crm.customers VALUES (:id, :age, :price, :share, :member, :city)")
        for number, identity in enumerate(identities):
            values = {"age": 20 + number, "price": Decimal("1.25"), "share": 0.5, "member": number % 2 == 0}
            connection.execute(insert, {"id": identity, "city": "Oslo" if number else None, **values})
    source = SqlSource(postgres_database, table="crm.customers")
    table = load_table(TableRequest(source, dtype=np.float64, categorical=["city"]))
    assert table.ids.tolist() == [str(identity) for identity in identities]
    np.testing.assert_array_equal(table.features[1], [21, 1.25, 0.5, 0])
    assert table.texts["city"].tolist() == [None, "Oslo", "Oslo", "Oslo"]
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE SEQUENCE visits"))
    for statement in ("SELECT 1 AS id, nextval('visits') AS visit", "DELETE FROM crm.customers RETURNING id"):
        with pytest.raises(TableUnreadable, match=r"read-only transaction|syntax error.*Correct `query`"):
            load_table(TableRequest(SqlSource(postgres_database, query=statement)))
    with engine.connect() as connection:
        assert connection.execute(sa.text("SELECT count(*) FROM crm.customers")).scalar() == 4
    engine.dispose()


def test_postgresql_streams_more_rows_than_one_batch(postgres_database, monkeypatch):
    monkeypatch.setattr("parley.tables.databases.BATCH_ROWS", 1000)
    query = "SELECT n AS id, CASE WHEN n > 2500 THEN n / 2.0 END AS half FROM generate_series(1, 5000) AS n"
    table = load_table(TableRequest(SqlSource(postgres_database, query=query), dtype=np.float64, missing=True))
    assert len(table) == 5000
    assert np.isnan(table.features[:2500]).all()
    np.testing.assert_array_equal(table.features[2500:, 0], np.arange(2501, 5001) / 2)
