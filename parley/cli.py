"""The `parley` command.

Commands import what they need when they run, so that help and completion answer at once.
"""

from typing import Annotated

import typer

from parley.commands import certs, data, demo, federation, ledger, results, run, services
from parley.commands.refusals import OneLineErrors

app = typer.Typer(
    name="parley",
    cls=OneLineErrors,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
app.add_typer(certs.app, name="certs")
app.add_typer(data.app, name="data")
app.add_typer(run.app, name="run")
app.add_typer(ledger.app, name="ledger")
app.command("predict")(federation.predict)
app.command("parties")(federation.parties)
app.command("coordinator")(services.coordinator)
app.command("party")(services.party)
app.command("demo")(demo.demo)
app.command("reproduce")(results.reproduce)
app.command("bench")(results.bench)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"parley {version('parley-fl')}")
        raise typer.Exit


@app.callback()
def parley(
    _: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")] = False,
) -> None:
    """Train models together without sharing data.

    Try it: [bold]parley demo[/bold]
    """


def main() -> None:
    """Entry point of the `parley` command."""
    app()
