"""The `parley` command.

Commands import what they need when they run, so that help and completion answer at once.
"""

from typing import Annotated

import typer

from parley.commands import (
    align,
    approve,
    attack,
    audit,
    backup,
    card,
    certs,
    coefficients,
    contribution,
    data,
    demo,
    deployments,
    doctor,
    explore,
    export,
    exposure,
    federation,
    ledger,
    manifest,
    results,
    run,
    scorecard,
    services,
    simulate,
    token,
    transcript,
    tune,
    upgrade,
    variables,
)
from parley.commands.refusals import OneLineErrors

app = typer.Typer(
    name="parley",
    cls=OneLineErrors,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
TRY, SET_UP, TRAIN = "Try it", "Set up a federation", "Train and predict"
app.command("demo", rich_help_panel=TRY)(demo.demo)
app.command("simulate", rich_help_panel=TRY)(simulate.simulate)
app.command("reproduce", rich_help_panel=TRY)(results.reproduce)
app.command("bench", rich_help_panel=TRY)(results.bench)
app.add_typer(certs.app, name="certs", rich_help_panel=SET_UP)
app.add_typer(data.app, name="data", rich_help_panel=SET_UP)
app.command("doctor", rich_help_panel=SET_UP)(doctor.doctor)
app.command("attack", rich_help_panel=SET_UP)(attack.attack)
app.command("manifest", rich_help_panel=SET_UP)(manifest.manifest)
app.command("approve", rich_help_panel=SET_UP)(approve.approve)
app.command("withdraw", rich_help_panel=SET_UP)(deployments.withdraw)
app.add_typer(token.app, name="token", rich_help_panel=SET_UP)
app.command("coordinator", rich_help_panel=SET_UP)(services.coordinator)
app.command("party", rich_help_panel=SET_UP)(services.party)
app.command("relay", rich_help_panel=SET_UP)(services.relay)
app.command("backup", rich_help_panel=SET_UP)(backup.backup)
app.command("restore", rich_help_panel=SET_UP)(backup.restore)
app.command("upgrade", rich_help_panel=SET_UP)(upgrade.upgrade)
app.add_typer(run.app, name="run", rich_help_panel=TRAIN)
run.app.command("card")(card.card)
run.app.command("coefficients")(coefficients.coefficients)
run.app.command("variables")(variables.variables)
app.command("align", rich_help_panel=TRAIN)(align.align)
app.command("explore", rich_help_panel=TRAIN)(explore.explore)
app.command("contribution", rich_help_panel=TRAIN)(contribution.contribution)
app.command("tune", rich_help_panel=TRAIN)(tune.tune)
app.command("scorecard", rich_help_panel=TRAIN)(scorecard.scorecard)
app.command("parties", rich_help_panel=TRAIN)(federation.parties)
app.command("predict", rich_help_panel=TRAIN)(federation.predict)
app.command("deploy", rich_help_panel=TRAIN)(deployments.deploy)
app.add_typer(deployments.app, name="deployments", rich_help_panel=TRAIN)
app.command("undeploy", rich_help_panel=TRAIN)(deployments.undeploy)
app.command("export", rich_help_panel=TRAIN)(export.export)
app.add_typer(ledger.app, name="ledger", rich_help_panel=TRAIN)
app.command("exposure", rich_help_panel=TRAIN)(exposure.exposure)
app.command("audit", rich_help_panel=TRAIN)(audit.audit)
app.add_typer(transcript.app, name="transcript", rich_help_panel=TRAIN)


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
