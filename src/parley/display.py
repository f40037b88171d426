"""What the command prints: tables, and the same rows as JSON."""

import io
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

console = Console()
errors = Console(stderr=True)
WIDEST = 1 << 16


def show(rows: Sequence[Mapping[str, Any]], *, as_json: bool, title: str | None = None, empty: str = "nothing") -> None:
    """Print rows that have the same keys as a table, or as a JSON list."""
    if as_json:
        print_json(list(rows))
        return
    if not rows:
        console.print(escape(empty))
        return
    print_table(table_of(rows, title))


def print_table(table: Table) -> None:
    """Print a table as wide as it is where a program reads it; people get it as wide as their terminal."""
    if console.is_terminal:
        console.print(table)
        return
    wide = Console(file=io.StringIO(), width=WIDEST, color_system=None)
    with wide.capture() as written:
        wide.print(table)
    console.file.writelines(f"{line.rstrip()}\n" for line in written.get().splitlines())


def show_fields(fields: Mapping[str, Any], *, as_json: bool) -> None:
    """Print one thing, a line for each of its fields, or as a JSON object."""
    if as_json:
        print_json(dict(fields))
        return
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold")
    grid.add_column(overflow="fold")
    for name, value in fields.items():
        if value not in (None, "", [], {}):
            grid.add_row(escape(name), escape(text(value)))
    print_table(grid)


def table_of(rows: Sequence[Mapping[str, Any]], title: str | None = None) -> Table:
    """Rows as a table; numbers are aligned to the right."""
    table = Table(title=title, title_justify="left", header_style="bold", box=box.SIMPLE_HEAD)
    for index, name in enumerate(rows[0]):
        numeric = all(_is_number(row[name]) or row[name] in (None, "") for row in rows)
        # What a row is called is copied and searched for: it stays in one piece.
        table.add_column(escape(name), justify="right" if numeric else "left", overflow="fold", no_wrap=index == 0)
    for row in rows:
        table.add_row(*(escape(text(value)) for value in row.values()))
    return table


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def text(value: Any) -> str:
    """A value for people."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:.5g}"  # counts come as floats
    if isinstance(value, (list, tuple)):
        return ", ".join(map(text, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {text(item)}" for key, item in value.items())
    return str(value)


def print_json(value: Any) -> None:
    """Print JSON and nothing else, so that a program can read it."""
    console.file.write(json_text(value))


def json_text(value: Any) -> str:
    """A value as JSON, for a file or a program."""
    return json.dumps(finite(value), indent=2, ensure_ascii=False, default=str) + "\n"


def finite(value: Any) -> Any:
    """A value that JSON can hold: infinite and undefined numbers become their names."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return value


def size(count: float) -> str:
    """Bytes for people, in powers of 1000."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
