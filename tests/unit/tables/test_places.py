"""Tables in an object store, and what is never written of it."""

import socket
import threading
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs
from pydantic import ValidationError

from parley.services.party.config import PartyConfig, TableConfig
from parley.services.party.tables import TableStore
from parley.tables.errors import TableNotFound, TableUnreadable
from parley.tables.loading import TableRequest, load_table
from parley.tables.places import Place, find_files
from parley.tables.row_files import Workspace, load_mapped

SECRET = "not-to-be-written-anywhere"  # noqa: S105 (of a server on this machine)


@pytest.fixture(scope="module")
def store():
    server = pytest.importorskip("moto.server")
    patch = {"AWS_ACCESS_KEY_ID": "someone", "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_EC2_METADATA_DISABLED": "true"}
    with mock.patch.dict("os.environ", patch):
        running = server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        running.start()
        _host, port = running.get_host_and_port()
        options = f"?endpoint_override=127.0.0.1:{port}&scheme=http&region=eu-north-1"
        system, _ = fs.FileSystem.from_uri(f"s3://bank{options}&allow_bucket_creation=true")
        system.create_dir("bank/customers/2025")
        for number in range(3):
            rows = pa.table({"id": np.arange(number * 10, number * 10 + 10), "age": np.arange(10.0)})
            pq.write_table(rows, f"bank/customers/2025/{number}.parquet", filesystem=system)
        yield options
        running.stop()


def test_a_prefix_a_pattern_and_an_object_are_read(store, tmp_path):
    whole = load_table(TableRequest(Place(f"s3://bank/customers{store}")))
    assert (len(whole), whole.columns) == (30, ["age"])
    mapped = load_mapped(TableRequest(Place(f"s3://bank/customers{store}")), Workspace(tmp_path, 100 << 20))
    assert mapped.features.tobytes() == whole.features.tobytes()
    assert len(load_table(TableRequest(Place(f"s3://bank/customers/*/*.parquet{store}")))) == 30
    assert len(load_table(TableRequest(Place(f"s3://bank/customers/2025/1.parquet{store}")))) == 10
    assert len(find_files(Place(f"s3://bank/**/2.parquet{store}"), None).files) == 1
    with pytest.raises(TableNotFound):
        find_files(Place(f"s3://bank/nothing{store}"), None)


def test_a_party_offers_a_table_of_a_store_and_sees_it_change(store):
    tables = TableStore({"customers": TableConfig(path=f"s3://bank/customers{store}")})
    assert tables.examine("customers").rows == 30
    stamp = tables.stamp("customers")
    assert tables.stamp("customers") == stamp != 0


def test_no_message_holds_a_secret(monkeypatch):
    for name, value in {"AWS_ACCESS_KEY_ID": "someone", "AWS_SECRET_ACCESS_KEY": SECRET}.items():
        monkeypatch.setenv(name, value)
    with socket.socket() as listening:  # answers with the secret, as a careless proxy might
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        threading.Thread(target=_repeat, args=(listening,), daemon=True).start()
        with pytest.raises((TableUnreadable, TableNotFound)) as refusal:
            find_files(Place(f"s3://bank/rows?endpoint_override=127.0.0.1:{port}&scheme=http&region=x"), None)
    assert SECRET not in str(refusal.value)
    assert "endpoint_override" not in str(refusal.value)


def _repeat(listening: socket.socket) -> None:
    answer = f"<Error><Code>AccessDenied</Code><Message>{SECRET}</Message></Error>".encode()
    head = b"HTTP/1.1 403 Forbidden\r\nContent-Type: application/xml\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
    while True:
        try:
            connection, _ = listening.accept()
        except OSError:
            return
        with connection:
            connection.recv(65536)
            connection.sendall(head % len(answer) + answer)


@pytest.mark.parametrize("place", [f"s3://me:{SECRET}@bank/rows", f"s3://bank/rows?secret_key={SECRET}"])
def test_a_place_with_a_key_is_refused_without_quoting_it(place):
    with pytest.raises(ValidationError) as refusal:
        TableConfig(path=place)
    assert SECRET not in str(refusal.value).replace(place, "")


def test_memory_is_a_number_of_bytes(tmp_path):
    policy = {"coordinators": ["c"], "algorithms": ["bambi"]}
    fields = {"name": "bank", "identity": tmp_path, "state": tmp_path, "tables": {}, "policy": policy}
    assert PartyConfig(**fields, memory="2GB").workspace == Workspace(tmp_path, 2 * 10**9)
    assert PartyConfig(**fields).workspace is None
    with pytest.raises(ValidationError):
        PartyConfig(**fields, memory="lots")
