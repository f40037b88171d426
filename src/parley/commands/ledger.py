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
    evaluations = [_evaluation(each) for each in ledger.evaluations]
    if json:
        print_json({"entries": entries, "report": report, "evaluations": evaluations})
        return
    if entries:
        print_table(table_of([_brief(entry) for entry in entries]))
    else:
        console.print("Nothing has been released yet.")
    show_fields(report, as_json=False)
    if evaluations:
        console.print("Figures on true labels that left as metrics:")
        print_table(table_of(evaluations))


@app.command()
def verify(
    run: RunId,
    address: AddressIfAny = None,
    identity: IdentityIfAny = None,
    coordinator: Coordinator = "coordinator",
    config: Config = None,
    head_file: Annotated[
        Path | None,
        typer.Option(
            "--head",
            help="A kept head, or a party's transcript of the run: the ledger must still hold every head in it.",
            metavar="FILE",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Check a ledger's hash chain; exit code 1 if an entry was changed or removed.

    A whole chain can be written anew. Whoever has kept a head (this command's --json output, or the transcript of a
    party, in which all parties of the run signed it) finds that out with --head.

    Example: [bold]parley ledger verify digits-1a2b3c4d --head state/transcripts/digits-1a2b3c4d.jsonl[/bold]
    """
    ledger = _read(run, address, identity, coordinator, config, delta=1e-6)
    broken = ledger.broken or ("" if head_file is None else _rewritten(ledger, head_file))
    head = ledger.entries[-1].hash if ledger.entries else ""
    if json:
        print_json({"whole": not broken, "entries": len(ledger.entries), "head": head, "broken": broken})
    elif broken:
        typer.echo(f"error: the chain is broken: {broken}", err=True)
    else:
        count = len(ledger.entries)
        typer.echo(f"{count} {'entry' if count == 1 else 'entries'}, the chain is whole, head {head or 'none yet'}")
    if broken:
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
        set_aside = ledger.allotted(but="")  # without noise on rows, which has a budget of its own (`datasets`)
    policy = getattr(settings, "policy", None)
    total = {"ε set aside": sum(each["ε set aside"] for each in listed)}
    if policy is not None:
        total = {"ε set aside": set_aside, "policy's epsilon_budget": policy.epsilon_budget}
    if json:
        print_json({"runs": listed, "total": total})
        return
    if listed:
        print_table(table_of(listed))
    else:
        console.print("Nothing has been released yet.")
    show_fields(total, as_json=False)


@app.command()
def datasets(
    config: Annotated[Path, typer.Option(help="The configuration of a party or a coordinator.", metavar="CONFIG.YAML")],
    json: Json = False,
) -> None:
    """Show what each data set has spent over all runs, what is left of its budget, and which run spent it.

    At a coordinator these are tables of labels, at a party its own rows. Noise that is drawn once is paid for once: a
    run that draws it again stands here with 0.

    Example: [bold]parley ledger datasets --config coordinator.yaml[/bold]
    """
    from contextlib import closing

    from parley.configurations import load_service_config

    settings = load_service_config(config)
    with closing(_opened(settings.database_url)) as ledger:
        listed = [_dataset(ledger, name, settings) for name in ledger.datasets()]
    if json:
        print_json({"datasets": listed})
    elif listed:
        print_table(table_of([{**each, "by run": _shares(each["by run"])} for each in listed]))
    else:
        console.print("Nothing has been released yet.")
    if any(each["chain"] != "whole" for each in listed):
        raise typer.Exit(REFUSED)


def _dataset(ledger: Any, name: str, settings: Any) -> dict[str, Any]:
    """One line of `datasets`, under the terms of the table's configuration."""
    from parley.privacy.dataset_ledger import AccountBroken, DatasetTerms

    tables, policy = getattr(settings, "labels", {}), getattr(settings, "policy", None)
    labels = tables[name].terms if name in tables else DatasetTerms()
    terms = labels if policy is None else policy.features.terms
    try:
        ledger.verify_account(name)
        chain = "whole"
    except AccountBroken as broken:
        chain = str(broken)
    account = ledger.account(name, terms)
    return {
        "data set": name,
        "ε spent": account.epsilon,
        "ε left": max(0.0, terms.epsilon - account.epsilon),
        "δ": account.delta,
        "records": account.records,
        "without noise": list(account.unprotected_runs),
        "by run": account.by_run,
        "chain": chain,
    }


def _shares(by_run: dict[str, float]) -> list[str]:
    """What each run cost; those that cost nothing are counted together."""
    paid = [f"{run} {epsilon:.4g}" for run, epsilon in by_run.items() if epsilon]
    free = len(by_run) - len(paid)
    return [*paid, f"{free} more at 0"] if free else paid


def _rewritten(ledger: "Ledger", path: Path) -> str:
    """What a kept head says against the ledger; nothing if it still holds them all."""
    kept = _kept_heads(path)
    if not kept:
        raise NoLedger(
            f"{path} holds no head of a ledger: give what `parley ledger verify --json` printed, or a transcript"
        )
    for entries, head in kept:
        if len(ledger.entries) < entries or ledger.entries[entries - 1].hash != head:
            return f"entry {entries - 1} is not the one whose head {head[:12]}… was kept: the ledger was written anew"
    return ""


def _kept_heads(path: Path) -> list[tuple[int, str]]:
    """Entries and head: of a kept output of this command, or of every receipt in a transcript."""
    found = set[tuple[int, str]]()
    text = path.read_text("utf-8")
    for line in [text] if text.lstrip().startswith("{\n") else text.splitlines():
        try:
            entry = json_format.loads(line)
        except ValueError:
            continue  # an empty line, or one that a crash tore
        if "head" in entry:
            found.add((entry["entries"], entry["head"]))
        for receipt in [*entry.get("receipts", []), *([entry["receipt"]] if "receipt" in entry else [])]:
            found.add((receipt["ledger_entries"], receipt["ledger_head"]))
    return sorted((entries, head) for entries, head in found if entries)


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

    settings = load_service_config(config)
    with closing(_opened(settings.database_url)) as ledger:
        known = ledger.runs()
        if run not in known:
            raise NoLedger(f"run {run} has released nothing here; the ledger has {', '.join(known) or 'no run'}")
        entries, broken = entries_of(ledger, run)
        budget = known[run].epsilon
        report = report_of(ledger, run, delta=delta, budget=budget) if not broken else ledger_pb2.PrivacyReport()
        return Ledger(entries, report, broken, _own_evaluations(settings, run))


def _own_evaluations(settings: Any, run: str) -> list[Any]:
    """What a coordinator's run let out as metrics; a party keeps no such register."""
    from contextlib import closing

    from parley.privacy.evaluations import open_register
    from parley.services.wire.ledger_codec import evaluations_of

    if not hasattr(settings, "labels"):
        return []
    with closing(open_register(settings.database_url)) as register:
        return evaluations_of(register, run)


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


def _evaluation(each: Any) -> dict[str, Any]:
    return {
        "figures": each.name,
        "rows": each.rows,
        "evaluations": each.evaluations,
        "ε each": each.epsilon if each.HasField("epsilon") else "none: exact",
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
