"""What an error of a database means, and that waiting for it takes nobody else's time."""

import asyncio
import sqlite3
import threading
import time

import pytest
import sqlalchemy as sa

from parley.services.coordinator.database_threads import DatabaseThreads
from parley.storage.engines import open_engine, require_whole
from parley.storage.failures import StorageAway, StorageDamaged, StorageFailed, named_failures


def test_a_server_that_is_not_there_is_away():
    engine = open_engine("postgresql+psycopg://nobody:hunter2@127.0.0.1:1/nothing")
    with pytest.raises(StorageAway, match="does not answer") as told, named_failures("the coordinator", engine):
        engine.connect()
    assert "hunter2" not in str(told.value)


def test_a_table_that_is_not_there_is_no_outage(tmp_path):
    engine = open_engine(f"sqlite:///{tmp_path / 'small.db'}")
    with pytest.raises(StorageFailed) as told, named_failures("the coordinator", engine):
        engine.connect().execute(sa.text("SELECT * FROM nothing"))
    assert type(told.value) is StorageFailed


def test_a_file_that_is_no_database_is_damaged(tmp_path):
    path = tmp_path / "broken.db"
    path.write_bytes(b"This is no database, but text, and long enough to be read as a header." * 40)
    with pytest.raises(StorageDamaged, match=r"the coordinator's database .*broken\.db is damaged .*docs/backups\.md"):
        require_whole("the coordinator", f"sqlite:///{path}")


def test_a_damaged_page_is_found_at_the_start_and_its_table_named(tmp_path):
    path = tmp_path / "broken.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE runs (number INTEGER PRIMARY KEY, spec TEXT)")
        connection.executemany("INSERT INTO runs (spec) VALUES (?)", [("x" * 500,)] * 200)
    connection.close()
    content = bytearray(path.read_bytes())
    content[4096:4120] = bytes(24)  # the header of the page where the table's tree begins
    path.write_bytes(content)
    with pytest.raises(StorageDamaged, match=r"\(tables runs: .*Nothing in it is trusted any more"):
        require_whole("the coordinator", f"sqlite:///{path}")
    assert path.read_bytes() == content


async def test_a_reader_is_refused_when_the_database_hangs_and_others_are_served():
    threads, thawed = DatabaseThreads(), threading.Event()
    hanging = [asyncio.create_task(threads.read_within(0.5, thawed.wait)) for _ in range(20)]
    await asyncio.sleep(0)
    assert await asyncio.to_thread(lambda: "served") == "served"
    results = await asyncio.gather(*hanging, return_exceptions=True)
    assert all(isinstance(result, StorageAway) for result in results)
    thawed.set()
    assert await threads.read(lambda: "back") == "back"
    threads.close()


async def test_a_write_is_tried_again_until_the_database_is_back():
    threads, tries = DatabaseThreads(), []

    def write():
        tries.append(time.monotonic())
        if len(tries) < 4:
            raise StorageAway("away")
        return "written"

    assert await threads.write_within(30.0, write) == "written"
    assert len(tries) == 4
    threads.close()


async def test_a_write_gives_up_when_its_time_is_over_and_other_errors_at_once():
    threads, tries = DatabaseThreads(), []

    def fail(error):
        tries.append(error)
        raise error

    with pytest.raises(StorageAway):
        await threads.write_within(0.5, fail, StorageAway("away"))
    assert len(tries) > 1
    tries.clear()
    with pytest.raises(StorageDamaged):
        await threads.write_within(30.0, fail, StorageDamaged("broken"))
    assert len(tries) == 1
    threads.close()


async def test_a_write_that_has_begun_ends_before_whoever_cancelled_it_goes_on():
    threads, written = DatabaseThreads(), []

    def write():
        time.sleep(0.3)
        written.append("late")

    task = asyncio.create_task(threads.write_within(30.0, write))
    await asyncio.sleep(0.1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert written == ["late"]
    threads.close()
