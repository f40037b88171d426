"""`parley ledger`: what runs released, about labels (the coordinator's ledger) or about a party's own records."""

import json as json_format
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parley.commands.options import AddressIfAny, Coordinator, IdentityIfAny, Json, RunId, dial
from parley.commands.refusals import REFUSED, Refused
from parley.display import console, print_json, print_table, show_fields, table_of

if TYPE_CHECKING:
    from parley.client import Ledger

app = typer.Typer(no_args_is_help=True, help="See what was released, and what it cost.")

PARTY_PANEL = "A ledger on this machine"
Config = Annotated[
    Path | None,
    typer.Option(
        help="The configuration of a party or a coordinator: read its ledger where it lies, without calling anyone.",
        metavar="CONFIG.YAML",
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
        print_table(table_of([_brief(entry) for entry in entries]))
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
    config: Annotated[Path, typer.Option(help="The configuration of a party or a coordinator.", metavar="CONFIG.YAML")],
    json: Json = False,
) -> None:
    """List the runs of a ledger on this machine: ε set aside and spent for each; for a party, all against its policy.

    Example: [bold]parley ledger runs --config party.yaml[/bold]
    """
    from contextlib import closing

    from parley.configurations import load_service_config

    settings = load_service_config(config)
    with closing(_opened(settings.database_url)) as ledger:
        listed = [
            {
                "run_id": run,
                "ε set aside": budget.epsilon,
                "ε spent": ledger.spent(run),
                "releases": ledger.head(run).length,
            }
            for run, budget in ledger.runs().items()
        ]
    total = {"ε set aside": sum(each["ε set aside"] for each in listed)}
    policy = getattr(settings, "policy", None)
    if policy is not None:
        total["policy's epsilon_budget"] = policy.epsilon_budget
    if json:
        print_json({"runs": listed, "total": total})
        return
    if listed:
        print_table(table_of(listed))
    else:
        console.print("Nothing has been released yet.")
    show_fields(total, as_json=False)


def _read(
    run: str, address: str | None, identity: Path | None, coordinator: str, config: Path | None, delta: float
) -> "Ledger":
    """The ledger of a service whose configuration is named, the one that a coordinator shows otherwise."""
    if config is not None:
        return _own(run, config, delta)
    if address is None or identity is None:
        raise typer.BadParameter(
            "say where the ledger is: --address and --identity for the coordinator's, --config for one on this machine"
        )
    with dial(address, identity, coordinator) as federation:
        return federation.run(run).ledger()


def _own(run: str, config: Path, delta: float) -> "Ledger":
    from contextlib import closing

    from parley.client import Ledger
    from parley.configurations import load_service_config
    from parley.contracts.ledger.v1 import ledger_pb2
    from parley.services.wire.ledger_codec import entries_of, report_of

    with closing(_opened(load_service_config(config).database_url)) as ledger:
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
        raise NoLedger(f"there is no database {parsed.database}: nothing has been released here yet")
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
