"""`parley exposure`: what a party's data have been summed for, over all runs."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parley.commands.options import Json
from parley.commands.refusals import Refused
from parley.display import console, print_json, print_table, table_of

if TYPE_CHECKING:
    from parley.services.party.config import PartyConfig
    from parley.services.party.exposure_tables import Exposure


def exposure(
    config: Annotated[Path, typer.Option(help="The party's configuration.", metavar="PARTY.YAML")],
    json: Json = False,
) -> None:
    """Show what left of a party's tables: runs, rows, columns, partners, and sums of each row against the floors.

    It is read where it lies; nobody is called.

    Example: [bold]parley exposure --config party.yaml[/bold]
    """
    from parley.configurations import is_coordinators
    from parley.services.party.config import PartyConfig
    from parley.services.wire.configuration import load_config

    if is_coordinators(config):
        raise Refused(f"{config} configures a coordinator: a register of exposure is a party's")
    settings = load_config(config, PartyConfig)
    entries = _registered(settings)
    if json:
        print_json({"runs": [_whole(entry) for entry in entries], "floors": _floors(settings)})
        return
    if not entries:
        console.print("No run has begun here yet.")
        return
    print_table(table_of([_brief(entry) for entry in entries]))
    for name, value in _floors(settings).items():
        console.print(f"{name}: {value}", highlight=False)


def _registered(settings: "PartyConfig") -> "list[Exposure]":
    from contextlib import closing

    from parley.services.party.exposure import open_register

    if not settings.has_database:
        return []
    with closing(open_register(settings.database_url)) as register:
        return register.entries()


def _floors(settings: "PartyConfig") -> dict[str, Any]:
    policy = settings.policy
    return {
        "runs_per_view": policy.runs_per_view,
        "sums_per_row": policy.sums_per_row,
        "differencing": policy.differencing,
    }


def _whole(entry: "Exposure") -> dict[str, Any]:
    from dataclasses import asdict

    return {**asdict(entry), "sums_per_row": entry.sums_per_row}


def _brief(entry: "Exposure") -> dict[str, Any]:
    return {
        "run": entry.run_id,
        "began": entry.time,
        "algorithm": entry.algorithm,
        "table": entry.table,
        "view": entry.view or f"{len(entry.columns)} columns",
        "rows sha256": entry.rows_digest[:12],
        "partners": ", ".join(entry.partners),
        "seed": entry.seed,
        "sums": entry.sums,
        "sums of a row": entry.sums_per_row,
        "linear in": entry.rank or "",
        "exact": "yes" if entry.exact else "no",
    }
