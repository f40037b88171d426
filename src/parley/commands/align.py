"""`parley align`: find the rows that all organisations have, without showing each other the rest."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parley.commands.options import Address, Coordinator, Identity, Json, dial
from parley.commands.refusals import Refused
from parley.display import console, errors, print_json, print_table, table_of

if TYPE_CHECKING:
    from parley.client import Alignment
    from parley.spec.run import RunSpec

Tell = Callable[[str, int, int], None]


class Duplicates(StrEnum):
    """What becomes of rows that share an id."""

    refuse = "refuse"
    first = "first"
    drop = "drop"


def align(
    name: Annotated[str, typer.Option(help="Store the rows under this name.")],
    address: Address,
    identity: Identity,
    spec: Annotated[
        Path | None,
        typer.Argument(
            help="A run's YAML file, for its parties and tables.", exists=True, dir_okay=False, metavar="[SPEC]"
        ),
    ] = None,
    coordinator: Coordinator = "coordinator",
    parties: Annotated[
        str, typer.Option(help="Parties, each with a table of its own if it needs one.", metavar="A,B:TABLE,…")
    ] = "",
    table: Annotated[str, typer.Option(help="The table that each party reads.")] = "train",
    labels: Annotated[str, typer.Option(help="The coordinator's label table; the same name if left out.")] = "",
    duplicates: Annotated[
        Duplicates, typer.Option(help="Rows with an id that another row has too: refuse, keep the first, or drop all.")
    ] = Duplicates.refuse,
    json: Json = False,
) -> None:
    """Find the rows that all parties and the label table have, by id, and store them under a name.

    Each organisation learns which of its own ids all the others have, and sizes; nothing else. A spec then says
    `alignment: NAME`.

    Example: [bold]parley align spec.yaml --name customers[/bold]

    Example: [bold]parley align --parties bank,shop,telco:users --table train --name customers[/bold]
    """
    if (spec is None) == (not parties):
        raise typer.BadParameter("give either a spec or --parties")
    if spec is None:
        tables = dict(_party(text, table) for text in parties.split(",") if text.strip())
        labelled = labels or table
    else:
        run = _vertical(spec.read_text())
        tables = {entry.name: run.table_of(index) for index, entry in enumerate(run.parties)}
        labelled = labels or run.label_table
    with dial(address, identity, coordinator) as federation, _shown(quiet=json) as tell:
        result = federation.align(name, tables, labels=labelled, duplicates=duplicates.value, progress=tell)
    if json:
        print_json({"name": result.name, "matched": result.matched, "id_digest": result.id_digest} | _tables(result))
        return
    rows = [{**held, "matched": result.matched} for held in _tables(result)["tables"]]
    print_table(table_of(rows, f"{result.matched} rows are common, stored as {result.name}"))
    console.print(f"ids sha256 {result.id_digest[:16]}…", highlight=False)
    console.print(f"Next: write [bold]alignment: {result.name}[/bold] into the spec, then parley run start spec.yaml")


def _party(text: str, table: str) -> tuple[str, str]:
    name, _, own = text.strip().partition(":")
    return name, own or table


def _vertical(text: str) -> "RunSpec":
    from parley.spec.parsing import parse_spec

    run = parse_spec(text)
    if run.train.layout == "horizontal":
        raise Refused(
            f"{run.train.algorithm} joins parties that hold different rows of the same columns: "
            "there is nothing to align"
        )
    return run


def _tables(result: "Alignment") -> dict[str, list[dict[str, object]]]:
    return {"tables": [asdict(held) for held in result.tables]}


@contextmanager
def _shown(*, quiet: bool) -> Iterator[Tell]:
    """A bar for each stage in a terminal, a line for each elsewhere."""
    if quiet:
        yield lambda *_: None
        return
    if not errors.is_terminal:
        seen: set[str] = set()

        def write(stage: str, done: int, total: int) -> None:  # noqa: ARG001 (lines have no bars)
            if stage not in seen:
                seen.add(stage)
                errors.print(f"{stage}…", highlight=False)

        yield write
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors, transient=True) as bars:
        tasks = {}

        def draw(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total or None)
            bars.update(tasks[stage], completed=done, total=total or None)

        yield draw
