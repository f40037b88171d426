"""`parley ledger`: what a run released about labels, and what that cost."""

import json as json_format
from typing import Any

import typer

from parley.commands.options import Address, Coordinator, Identity, Json, RunId, dial
from parley.commands.refusals import REFUSED
from parley.display import console, print_json, show_fields, table_of

app = typer.Typer(no_args_is_help=True, help="See what was released about labels, and what it cost.")


@app.command()
def show(
    run: RunId, address: Address, identity: Identity, coordinator: Coordinator = "coordinator", json: Json = False
) -> None:
    """Show every entry of a run's label ledger, and ε by three ways of composing them.

    Example: [bold]parley ledger show digits-1a2b3c4d[/bold]
    """
    with dial(address, identity, coordinator) as federation:
        ledger = federation.run(run).ledger()
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
    run: RunId, address: Address, identity: Identity, coordinator: Coordinator = "coordinator", json: Json = False
) -> None:
    """Check a ledger's hash chain; exit code 1 if an entry was changed or removed.

    Example: [bold]parley ledger verify digits-1a2b3c4d[/bold]
    """
    with dial(address, identity, coordinator) as federation:
        ledger = federation.run(run).ledger()
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
