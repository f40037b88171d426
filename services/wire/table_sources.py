"""Where a configured table comes from: a file, or a query of a database."""

import time
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from parley.services.wire.configuration import FilePath, TablePath
from parley.spec.section import Section
from parley.tables.databases import MOST_BYTES, MOST_ROWS, SqlSource
from parley.tables.places import Place, changed, is_several
from parley.tables.spelling import Spelling


class TableSource(Section):
    """A file, or rows of a database."""

    path: TablePath | None = None
    """CSV, Parquet, NPZ or svmlight file; of CSV or Parquet also a folder or a pattern (`*.parquet`) of files, here or
    in an object store (`s3://`, `gs://`, `abfs://`; credentials from the environment)."""
    format: Literal["csv", "parquet", "npz", "svmlight"] | None = None
    """`csv`, `parquet`, `npz` or `svmlight`, where the file's name does not say it."""
    delimiter: str = Field(default=",", min_length=1, max_length=1)
    """What separates the fields of a CSV file."""
    decimal: Literal[".", ","] = "."
    """What separates the fraction of a number that is written as text, such as in CSV."""
    thousands: Literal["", ",", ".", "'", " "] = ""
    """What separates groups of three digits in such a number."""
    url: str | None = None
    """Or a database: `postgresql+psycopg://user@host/database`, `sqlite:////path.db`; never with a password."""
    query: str | None = None
    """SELECT statement that brings the rows (url)."""
    table: str | None = None
    """Or a table or view that is read whole (url)."""
    password_env: str | None = None
    """Environment variable that holds the database password (url)."""
    password_file: FilePath | None = None
    """Or the file that holds it (url)."""
    most_rows: int = Field(default=MOST_ROWS, ge=1)
    """A query that brings more rows is refused (url)."""
    most_bytes: int = Field(default=MOST_BYTES, ge=1)
    """The same for the size of its columns in memory (url)."""
    refresh_seconds: float = Field(default=300, ge=0)
    """For how long rows that were read are used again, before the query runs anew (url)."""

    @property
    def source(self) -> Path | SqlSource | Place:
        """What to load from."""
        if self.url is None:
            assert self.path is not None  # noqa: S101 (validated below)
            return Place(self.path) if is_several(self.path) else Path(self.path)
        return SqlSource(
            self.url,
            self.query,
            self.table,
            self.password_env,
            self.password_file,
            self.most_rows,
            self.most_bytes,
        )

    @property
    def spelling(self) -> Spelling:
        """How numbers are written."""
        return Spelling(self.decimal, self.thousands)

    def stamp(self) -> int:
        """Changes when the table should be read again."""
        if self.path is not None and is_several(self.path):
            return changed(Place(self.path))
        if self.path is not None:
            return Path(self.path).stat().st_mtime_ns if Path(self.path).exists() else 0
        return int(time.monotonic() / self.refresh_seconds) if self.refresh_seconds else time.monotonic_ns()

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.decimal == self.thousands:
            raise ValueError("`decimal` and `thousands` are the same sign: a number could be read in two ways")
        if (self.path is None) == (self.url is None):
            raise ValueError("give either `path` (a file) or `url` (a database)")
        if self.url is None:
            given = {"query": self.query, "table": self.table, "password_env": self.password_env}
            extra = [name for name, value in given.items() if value is not None]
            if extra:
                raise ValueError(f"`{extra[0]}` belongs to a database: give `url` instead of `path`")
            return self
        if (self.query is None) == (self.table is None):
            raise ValueError("a database needs either `query` or `table`")
        if self.password_env is not None and self.password_file is not None:
            raise ValueError("give either `password_env` or `password_file`")
        _check_url(self.url)
        return self


def _check_url(text: str) -> None:
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        raise ValueError("`url` is no SQLAlchemy URL: write dialect+driver://user@host:port/database") from None
    if url.password is not None or "password" in url.query:
        raise ValueError("`url` holds a password: name the variable or file that has it, as `password_env: NAME`")
