"""What can be wrong with a table file; each text says where, what, and what to do."""

OTHERS = "list the others as `columns` of this party in the run's spec"
"""How a column is left out of a run."""


class TableError(ValueError):
    """A table cannot be used. The text says which file, column and line, what is wrong and what to do.

    `source` is a path, or a query of a database. The text may quote a cell; `without_values` is for logs.
    """

    def __init__(
        self, source: object, problem: str, remedy: str, *, column: str | None = None, place: str | None = None
    ):
        self.source, self.column, self.place = source, column, place
        where = ", ".join(filter(None, [str(source), f"column {column!r}" if column is not None else "", place or ""]))
        super().__init__(f"{where}: {problem}. {remedy}.")
        self.without_values = f"{where}: {type(self).__name__}. {remedy}."


class TableNotFound(TableError):
    """There is no such file."""


class UnknownTableFormat(TableError):
    """The file's name does not say what it holds, or the format is not one that we read."""


class TableFormatMismatch(TableError):
    """The file holds another format than its name or the caller says."""


class TableUnreadable(TableError):
    """The file is truncated, damaged, in another encoding, or may not be read."""


class TableTooLarge(TableError):
    """A query brings more than the table's limits allow, or a table more rows than memory has room for."""


class TableEmpty(TableError):
    """The file has no rows, or no feature columns."""


class ColumnMissing(TableError):
    """A column that was asked for is not in the file."""


class ColumnDuplicated(TableError):
    """Two columns have the same name."""


class ColumnNotNumeric(TableError):
    """A feature is not a number."""


class FeatureMissing(TableError):
    """A feature has no value, or is NaN."""


class FeatureNotFinite(TableError):
    """A feature is infinite, or too large for the type that was asked for."""


class RowRagged(TableError):
    """A line has more or fewer fields than the header."""


class TableUnknown(LookupError):
    """The party has no such table, or it lacks what a run needs of it."""


class RowsDiffer(ValueError):
    """Rows that were asked for are not in the table, or labels are not about its rows."""
