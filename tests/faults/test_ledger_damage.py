"""Any flipped bit of a ledger's file is found, or lies where nothing of the ledger does."""

import random
import shutil
import sqlite3
from contextlib import closing

import numpy as np
import pytest

from parley.privacy.accounting import RandomisedResponse, RecordCounts
from parley.privacy.ledger import Budget, Charge, LedgerUnusable, open_ledger
from parley.services.wire.ledger_codec import entries_of
from parley.storage.migrations import DatabaseRefused

RUN = "damage-0123456789"
FLIPS = 400


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """A ledger with three entries, in one whole file."""
    path = tmp_path_factory.mktemp("ledger") / "ledger.db"
    with closing(open_ledger(f"sqlite:///{path}")) as ledger:
        ledger.open_run(RUN, 40, Budget(100.0))
        for block in range(3):
            charge = Charge(RandomisedResponse(1.0, 10), ("bank", "shop"), RecordCounts(np.full(40, 2)))
            ledger.reserve(RUN, 5 * block, 5, charge)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("PRAGMA journal_mode=DELETE")
    return path


def read(path):
    """Entries and what is broken, as every reader of a ledger gets them."""
    try:
        with closing(open_ledger(f"sqlite:///{path}")) as ledger:
            return entries_of(ledger, RUN)
    except (LedgerUnusable, DatabaseRefused) as error:  # the latter where the damage is in a table's definition
        return [], str(error)


def test_a_flipped_bit_anywhere_is_found_or_changes_nothing(database, tmp_path):
    whole, broken = read(shutil.copy(database, tmp_path / "whole.db"))
    assert (len(whole), broken) == (3, "")
    content, chance, found = database.read_bytes(), random.Random(1), 0
    used = [place for place, byte in enumerate(content) if byte]  # most of the rest is free space
    for number in range(FLIPS):
        changed = bytearray(content)
        changed[chance.choice(used)] ^= 1 << chance.randrange(8)
        path = tmp_path / "damaged.db"
        path.write_bytes(changed)
        entries, broken = read(path)
        found += bool(broken)
        assert broken or entries == whole, f"flip {number} was taken for the truth"
        for rest in tmp_path.glob("damaged.db*"):
            rest.unlink()
    assert found > FLIPS / 4
