"""`parley transcript`: what a party was told and has released in a run, with everybody's signatures."""

from pathlib import Path
from typing import Annotated, Any

import typer

from parley.commands.options import Json, RunId
from parley.commands.refusals import REFUSED, Refused
from parley.display import print_json, show, show_fields

app = typer.Typer(no_args_is_help=True, help="See and verify what this party was told and has released.")
Config = Annotated[Path, typer.Option(help="The party's configuration.", metavar="PARTY.YAML")]


class NoTranscript(Refused):
    """The party has no record of the run."""


@app.command("show")
def show_record(run: RunId, config: Config = Path("party.yaml"), json: Json = False) -> None:
    """Show the party's record of a run: sessions, checkpoints with everybody's receipts, and what left.

    Example: [bold]parley transcript show digits-1a2b3c4d --config party.yaml[/bold]
    """
    entries = list(_file(run, config).entries())
    if json:
        print_json(entries)
        return
    show([_brief(entry) for entry in entries], as_json=False)


@app.command()
def verify(run: RunId, config: Config = Path("party.yaml"), json: Json = False) -> None:
    """Verify every signature of the record, and that receipts of one checkpoint agree; exit code 1 if not.

    Example: [bold]parley transcript verify digits-1a2b3c4d --config party.yaml[/bold]
    """
    from parley.privacy.receipts import TranscriptDiffers
    from parley.services.party.transcripts import check_record

    try:
        found = check_record(_file(run, config))
    except (TranscriptDiffers, LookupError) as wrong:
        typer.echo(f"error: the record does not hold: {wrong}", err=True)
        raise typer.Exit(REFUSED) from None
    fields = {
        "sessions": found.sessions,
        "checkpoints that all parties signed": found.witnessed,
        "rounds": found.rounds,
        "answers that left": found.releases,
        "label ledger entries": found.ledger.entries,
        "label ledger head": found.ledger.head.hex(),
    }
    show_fields(fields, as_json=json)


def _file(run: str, config: Path) -> Any:
    from parley.services.party.config import PartyConfig
    from parley.services.party.transcripts import TranscriptFile
    from parley.services.wire.configuration import load_config

    file = TranscriptFile(load_config(config, PartyConfig).state, run)
    if not file.path.is_file():
        raise NoTranscript(f"this party has no record of run {run}: it took part in no session of it")
    return file


def _brief(entry: dict[str, Any]) -> dict[str, Any]:
    receipts = entry.get("receipts") or [entry["receipt"]] if entry["kind"] != "begin" else []
    own = receipts[0] if receipts else {}
    return {
        "time": entry["time"],
        "what": entry["kind"],
        "session": entry.get("session", ""),
        "round": own.get("round", ""),
        "answers": own.get("releases", ""),
        "released": str(own.get("released", ""))[:12],
        "signed by": [each["name"] for each in receipts],
        "label ledger": own.get("ledger_entries", ""),
    }
