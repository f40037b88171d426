"""What the register of exposure keeps: one entry for each run over one set of rows."""

import hashlib
import json
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa
from numpy.typing import NDArray

from parley.storage.migrations import History
from parley.tables.identities import canonical_all
from parley.tables.rows import pieces

RowHashes = NDArray[np.uint64]
metadata = sa.MetaData()
rows_table = sa.Table(
    "exposure_rows",
    metadata,
    sa.Column("digest", sa.Text, primary_key=True),
    sa.Column("count", sa.BigInteger, nullable=False),
    sa.Column("hashes", sa.LargeBinary, nullable=False),
)
entries_table = sa.Table(
    "exposure_entries",
    metadata,
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("time", sa.Text, nullable=False),
    sa.Column("run_id", sa.Text, nullable=False),
    sa.Column("algorithm", sa.Text, nullable=False),
    sa.Column("layout", sa.Text, nullable=False),
    sa.Column("table_name", sa.Text, nullable=False),
    sa.Column("table_digest", sa.Text, nullable=False),
    sa.Column("rows_digest", sa.Text, nullable=False),
    sa.Column("view", sa.Text, nullable=False),
    sa.Column("columns", sa.Text, nullable=False),
    sa.Column("partners", sa.Text, nullable=False),
    sa.Column("seed", sa.BigInteger, nullable=False),
    sa.Column("spec_digest", sa.Text, nullable=False),
    sa.Column("exact", sa.Boolean, nullable=False),
    sa.Column("rank", sa.BigInteger, nullable=True),
    sa.Column("share", sa.Double, nullable=False),
    sa.Column("sums", sa.BigInteger, nullable=False),
    sa.Column("salt", sa.Text, nullable=False),
    sa.Column("drawn", sa.Text, nullable=True),
)
ANY_SEED = -1
"""Stands for the seed of a run whose sums are nearly the same whatever its seed is."""
HISTORY = History("exposure", metadata, Path(__file__).parent / "exposure_revisions", newest="0002")


@dataclass(frozen=True)
class Exposure:
    """What a run sums of this party's data, or has summed."""

    run_id: str
    algorithm: str
    layout: str
    """`vertical` or `horizontal`; `figures` where what leaves are figures over sets of rows; `judged` for a set of
    rows that exact metrics are taken over."""
    table: str
    table_digest: str
    """Of its values, as the run reads them."""
    rows_digest: str
    """Of the ids of the rows, in order."""
    view: str
    """The view's name; empty for a whole table or a free choice."""
    columns: tuple[str, ...]
    """In alphabetical order."""
    partners: tuple[str, ...]
    """All parties of the run, in alphabetical order."""
    seed: int
    """ANY_SEED where another one changes little."""
    spec_digest: str
    exact: bool
    """Whether the sums hold no noise of this party's own."""
    rank: int | None = None
    """Sums that determine the span of the columns; None where the party's block is not linear."""
    share: float = 1.0
    """Of the rows, the part that one sum is about; 0 for a table that the run reads beside its own."""
    sums: int = 0
    """Sums that were counted for the run; while it goes on, up to a block more than have left."""
    salt: str = ""
    """What makes the run's batches others than the seed's."""
    drawn: str = ""
    """Digest of what decides, beside the seed, which rows one value is made from; of a linear block, where each row has
    a value of its own, of the scales of its columns."""
    time: str = ""
    """When it began."""

    @property
    def sums_per_row(self) -> int:
        """Sums that a row is in, on average over the rows."""
        return ceil(self.sums * self.share)

    @property
    def data(self) -> tuple[str, str, str]:
        """What two sessions of one run read alike, if nothing was changed between them."""
        return self.table, self.table_digest, self.rows_digest

    def record(self) -> dict[str, Any]:
        """As a row of the table."""
        return {
            "time": self.time,
            "run_id": self.run_id,
            "algorithm": self.algorithm,
            "layout": self.layout,
            "table_name": self.table,
            "table_digest": self.table_digest,
            "rows_digest": self.rows_digest,
            "view": self.view,
            "columns": json.dumps(self.columns),
            "partners": json.dumps(self.partners),
            "seed": self.seed,
            "spec_digest": self.spec_digest,
            "exact": self.exact,
            "rank": self.rank,
            "share": self.share,
            "sums": self.sums,
            "salt": self.salt,
            "drawn": self.drawn,
        }


def from_record(record: sa.Row[Any]) -> Exposure:
    """A row of the table."""
    return Exposure(
        run_id=record.run_id,
        algorithm=record.algorithm,
        layout=record.layout,
        table=record.table_name,
        table_digest=record.table_digest,
        rows_digest=record.rows_digest,
        view=record.view,
        columns=tuple(json.loads(record.columns)),
        partners=tuple(json.loads(record.partners)),
        seed=record.seed,
        spec_digest=record.spec_digest,
        exact=record.exact,
        rank=record.rank,
        share=record.share,
        sums=record.sums,
        salt=record.salt,
        drawn=record.drawn or "",
        time=record.time,
    )


def row_hashes(ids: NDArray[np.str_]) -> RowHashes:
    """Eight bytes for each id, sorted: enough to see whether two sets of rows have one in common.

    An aligned table has its ids in their canonical spelling, the same table by itself as its file spells them.
    """
    hashes = np.empty(len(ids), "<u8")
    for rows in pieces(len(ids)):
        spelt = canonical_all(ids[rows].tolist())
        made = b"".join([hashlib.blake2b(each.encode(), digest_size=8).digest() for each in spelt])
        hashes[rows] = np.frombuffer(made, "<u8")
    hashes.sort()
    return hashes
