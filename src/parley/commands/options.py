"""Options that several commands share."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from parley.client import Federation

COORDINATOR_PANEL = "Coordinator"

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite files.")]
_ADDRESS = typer.Option(
    envvar="PARLEY_ADDRESS",
    help="host:port of the coordinator.",
    metavar="HOST:PORT",
    rich_help_panel=COORDINATOR_PANEL,
)
_IDENTITY = typer.Option(
    envvar="PARLEY_IDENTITY", help="Folder with your client certificate.", rich_help_panel=COORDINATOR_PANEL
)
Address = Annotated[str, _ADDRESS]
Identity = Annotated[Path, _IDENTITY]
AddressIfAny = Annotated[str | None, _ADDRESS]
IdentityIfAny = Annotated[Path | None, _IDENTITY]
Coordinator = Annotated[
    str,
    typer.Option(
        envvar="PARLEY_COORDINATOR",
        help="Name in the coordinator's certificate.",
        rich_help_panel=COORDINATOR_PANEL,
    ),
]
RunId = Annotated[str, typer.Argument(help="The run's id, as `parley run list` shows it.", metavar="RUN")]


def dial(address: str, identity: Path, coordinator: str) -> "Federation":
    """Connect to the coordinator that the options name."""
    from parley.client import connect

    return connect(address, identity, coordinator)
