"""`parley ledger`: what runs released, about labels (the coordinator's ledger) or about a party's own records."""

import json as json_format
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parley.commands.options import AddressIfAny, Coordinator, IdentityIfAny, Json, RunId, dial
from parley.commands.refusals import REFUSED, Refused
from parley.display import console, print_json, show_fields, table_of

if TYPE_CHECKING:
    from parley.client import Ledger

app = typer.Typer(no_args_is_help=True, help="See what was released, and what it cost.")

PARTY_PANEL = "A party's own ledger"
Config = Annotated[
    Path | None,
    typer.Option(
        help="The party's configuration file: read its own ledger where it lies, without the coordinator.",
        metavar="PARTY.YAML",
        rich_help_panel=PARTY_PANEL,
    ),
]
Delta = Annotated[
    float, typer.Option(help="δ of the (ε, δ) figures.", min=1e-300, max=0.1, rich_help_panel=PARTY_PANEL)
]


class NoLedger(Refused):
    """There is no ledger where one was looked for, or none of this run."""


@app.command()
def show(
    run: RunId,
    address: AddressIfAny = None,
    identity: IdentityIfAny = None,
    coordinator: Coordinator = "coordinator",
    config: Config = None,
    delta: Delta = 1e-6,
    json: Json = False,
) -> None:
    """Show every entry of a run's ledger, and ε by three ways of composing them.

    The coordinator's ledger is about labels. A party's own one (LDP-DSBO) is about its records.

    Example: [bold]parley ledger show digits-1a2b3c4d[/bold]

    Example: [bold]parley ledger show private-1a2b3c4d --config party.yaml[/bold]
    """
    ledger = _read(run, address, identity, coordinator, config, delta)
    entries = [_entry(entry) for entry in ledger.entries]
    report = _report(ledger.report) | {"chain": ledger.broken or "whole"}
    if json:
        print_json({"entries": entries, "report": report})
        return
    if entries:
        console.print(table_of([_brief(entry) for entry in entries]))
    else:
        console.print("Nothing has been released yet.")
    show_fields(report, as_json=False)


@app.command()
def verify(
    run: RunId,
    address: AddressIfAny = None,
    identity: IdentityIfAny = None,
    coordinator: Coordinator = "coordinator",
    config: Config = None,
    json: Json = False,
) -> None:
    """Check a ledger's hash chain; exit code 1 if an entry was changed or removed.

    Example: [bold]parley ledger verify digits-1a2b3c4d[/bold]
    """
    ledger = _read(run, address, identity, coordinator, config, delta=1e-6)
    head = ledger.entries[-1].hash if ledger.entries else ""
    if json:
        print_json({"whole": not ledger.broken, "entries": len(ledger.entries), "head": head, "broken": ledger.broken})
    elif ledger.broken:
        typer.echo(f"error: the chain is broken: {ledger.broken}", err=True)
    else:
        count = len(ledger.entries)
        typer.echo(f"{count} {'entry' if count == 1 else 'entries'}, the chain is whole, head {head or 'none yet'}")
    if ledger.broken:
        raise typer.Exit(REFUSED)


@app.command()
def runs(
    config: Annotated[Path, typer.Option(help="The party's configuration file.", metavar="PARTY.YAML")],
    json: Json = False,
) -> None:
    """List the runs of a party's own ledger: ε set aside and spent for each, and for all against its policy.

    Example: [bold]parley ledger runs --config party.yaml[/bold]
    """
    from contextlib import closing

    from parley.services.party.config import PartyConfig
    from parley.services.wire.configuration import load_config

    settings = load_config(config, PartyConfig)
    with closing(_opened(settings.database_url)) as ledger:
        listed = [
            {
                "run": run,
                "ε set aside": budget.epsilon,
                "ε spent": ledger.spent(run),
                "releases": ledger.head(run).length,
            }
            for run, budget in ledger.runs().items()
        ]
    total = {
        "ε set aside": sum(each["ε set aside"] for each in listed),
        "policy's epsilon_budget": settings.policy.epsilon_budget,
    }
    if json:
        print_json({"runs": listed, "total": total})
        return
    console.print(table_of(listed) if listed else "Nothing has been released yet.")
    show_fields(total, as_json=False)


def _read(
    run: str, address: str | None, identity: Path | None, coordinator: str, config: Path | None, delta: float
) -> "Ledger":
    """The party's own ledger where its configuration is named, the coordinator's otherwise."""
    if config is not None:
        return _own(run, config, delta)
    if address is None or identity is None:
        raise typer.BadParameter(
            "say where the ledger is: --address and --identity for the coordinator's, --config for a party's own"
        )
    with dial(address, identity, coordinator) as federation:
        return federation.run(run).ledger()


def _own(run: str, config: Path, delta: float) -> "Ledger":
    from contextlib import closing

    from parley.client import Ledger
    from parley.contracts.ledger.v1 import ledger_pb2
    from parley.services.party.config import PartyConfig
    from parley.services.wire.configuration import load_config
    from parley.services.wire.ledger_codec import entries_of, report_of

    with closing(_opened(load_config(config, PartyConfig).database_url)) as ledger:
        known = ledger.runs()
        if run not in known:
            raise NoLedger(f"run {run} has released nothing here; the ledger has {', '.join(known) or 'no run'}")
        entries, broken = entries_of(ledger, run)
        budget = known[run].epsilon
        report = report_of(ledger, run, delta=delta, budget=budget) if not broken else ledger_pb2.PrivacyReport()
        return Ledger(entries, report, broken)


def _opened(url: str) -> Any:
    from sqlalchemy import make_url

    from parley.privacy.ledger import open_ledger

    parsed = make_url(url)
    if parsed.drivername.startswith("sqlite") and not Path(parsed.database or "").is_file():
        raise NoLedger(f"there is no database {parsed.database}: the party has released nothing yet")
    return open_ledger(url)


def _entry(entry: Any) -> dict[str, Any]:
    return {
        "entry": entry.sequence,
        "time": entry.time,
        "kind": entry.kind,
        "mechanism": _mechanism(entry.mechanism),
        "recipients": _names(entry.recipients),
        "releases": entry.releases,
        "records": entry.records,
        "ε each": entry.epsilon,
        "most per record": entry.largest_count,
        "hash": entry.hash,
    }


def _brief(entry: dict[str, Any]) -> dict[str, Any]:
    """An entry that fits a terminal; the mechanism stands in the report below."""
    time = entry["time"][:19].replace("T", " ")
    kept = {name: value for name, value in entry.items() if name != "mechanism"}
    return kept | {"time": time, "hash": entry["hash"][:8]}


def _report(report: Any) -> dict[str, Any]:
    return {
        "mechanism": _mechanism(report.mechanism),
        "pure ε": report.pure_epsilon,
        "ε by Rényi": report.rdp_epsilon,
        "ε by privacy loss": report.pld_epsilon,
        "δ of these": report.delta,
        "releases of one record": report.largest_count,
        "budget": report.budget or None,
    }


def _mechanism(text: str) -> str:
    """The mechanism's name and settings; the ledger stores them as JSON."""
    try:
        fields = json_format.loads(text)
    except ValueError:
        return text
    return ", ".join([str(fields.pop("kind", "")), *(f"{name} {value}" for name, value in fields.items())])


def _names(text: str) -> list[str]:
    try:
        return [str(name) for name in json_format.loads(text)]
    except (ValueError, TypeError):
        return [text]
