"""`parley token`: named tokens for the coordinator's web page and its HTTP paths."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parley.commands.options import Json
from parley.display import console, errors, show, show_fields

if TYPE_CHECKING:
    from parley.dashboard.tokens import TokenFile

app = typer.Typer(no_args_is_help=True, help="Make, list and revoke tokens for the web page and HTTP.")
Config = Annotated[Path, typer.Option(help="The coordinator's configuration.", metavar="FILE")]
Name = Annotated[str, typer.Argument(help="Whom the token is for; the audit trail shows it.", metavar="NAME")]


@app.command()
def create(
    name: Name,
    may: Annotated[list[str], typer.Option("--may", help="A permission, such as watch; once for each.")],
    config: Config = Path("coordinator.yaml"),
    days: Annotated[float | None, typer.Option(help="How long it stands; until it is revoked if left out.")] = None,
    json: Json = False,
) -> None:
    """Make a token and print it. It is told once: the coordinator keeps a digest of it, and takes it at once.

    Example: [bold]parley token create grafana --may watch --days 90 --config coordinator.yaml[/bold]
    """
    from parley.services.coordinator.config import ALL_PERMISSIONS

    for each in may:
        if each not in ALL_PERMISSIONS:
            raise typer.BadParameter(f"{each} is no permission: choose of {', '.join(ALL_PERMISSIONS)}")
    if days is not None and not 0 < days <= 36_500:
        raise typer.BadParameter("--days: give more than 0, and at most 36500")
    token = _tokens(config).create(name, may, days)
    if json:
        show_fields({"name": name, "permissions": may, "token": token}, as_json=True)
        return
    typer.echo(token)
    errors.print(f"Token of {name} for {', '.join(may)}. It is not shown again.", highlight=False)


@app.command("list")
def list_(config: Config = Path("coordinator.yaml"), json: Json = False) -> None:
    """List tokens: names, permissions and times; nobody can read a token back.

    Example: [bold]parley token list --config coordinator.yaml[/bold]
    """
    rows = [
        {
            "name": token.name,
            "permissions": list(token.permissions),
            "created": _moment(token.created),
            "expires": "never" if token.expires is None else _moment(token.expires),
        }
        for token in _tokens(config).all()
    ]
    show(rows, as_json=json, empty="There are no tokens: make one with `parley token create`.")


@app.command()
def revoke(name: Name, config: Config = Path("coordinator.yaml")) -> None:
    """Take a token back. Whoever has it, or logged in with it, is out from the next request on.

    Example: [bold]parley token revoke grafana --config coordinator.yaml[/bold]
    """
    _tokens(config).revoke(name)
    console.print(f"Revoked {name}.")


def _tokens(config: Path) -> "TokenFile":
    from parley.dashboard.tokens import TokenFile
    from parley.services.coordinator.config import CoordinatorConfig
    from parley.services.wire.configuration import load_config

    state = load_config(config, CoordinatorConfig).state
    state.mkdir(parents=True, exist_ok=True, mode=0o700)  # before the coordinator's first start, too
    return TokenFile(state)


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
