"""`parley run`: check, start and follow runs."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.padding import Padding

from parley.commands.coefficients import coefficient_rows, show_coefficients
from parley.commands.options import Address, Coordinator, Identity, Json, RunId, dial
from parley.commands.refusals import REFUSED, Refused
from parley.display import console, finite, print_json, show, show_fields

if TYPE_CHECKING:
    from parley.client import Run

app = typer.Typer(no_args_is_help=True, help="Check, start and follow runs.")

States = Annotated[list[str] | None, typer.Option("--state", help="Only runs in this state; may be given again.")]
Spec = Annotated[Path, typer.Argument(help="The run's YAML file.", exists=True, dir_okay=False, metavar="SPEC")]


@app.command()
def check(spec: Spec, json: Json = False) -> None:
    """Find every mistake in a spec, with its line. Needs no coordinator.

    Example: [bold]parley run check spec.yaml[/bold]
    """
    from parley.spec.parsing import check_spec

    problems = check_spec(spec.read_text())
    if json:
        print_json([{"field": p.field, "line": p.line, "message": p.message} for p in problems])
    for problem in problems if not json else ():
        place = f"{spec}:{problem.line}" if problem.line else str(spec)
        what = f"{problem.field}: {problem.message}" if problem.field else problem.message
        typer.echo(f"{place}: {what}", err=True)
    if problems:
        raise typer.Exit(REFUSED)
    if not json:
        typer.echo(f"{spec}: valid")


@app.command()
def fields(
    section: Annotated[str, typer.Argument(help="Only this part, such as train.lower; all if left out.")] = "",
    json: Json = False,
) -> None:
    """Document every field of a spec: type, default and meaning.

    Example: [bold]parley run fields privacy[/bold]
    """
    from parley.fields import spec_fields

    found = [entry for entry in spec_fields() if not section or entry.is_in(section)]
    if not found:
        raise Refused(f"there is no field {section!r} in a spec: `parley run fields` lists all of them")
    if json:
        print_json([asdict(entry) for entry in found])
        return
    for entry in found:
        default = entry.default if entry.default in ("", "required") else f"default {entry.default}"
        heading = f"[bold]{escape(entry.path)}[/bold]  [cyan]{escape(entry.kind)}[/cyan]  [dim]{escape(default)}[/dim]"
        console.print(heading.rstrip(), highlight=False)
        console.print(Padding(escape(entry.meaning), (0, 0, 0, 4)), highlight=False)


@app.command()
def start(
    spec: Spec,
    address: Address,
    identity: Identity,
    coordinator: Coordinator = "coordinator",
    watch: Annotated[bool, typer.Option("--watch", help="Follow the run to its end.")] = False,
    request_id: Annotated[str | None, typer.Option(help="A retry with the same id starts no second run.")] = None,
    json: Json = False,
) -> None:
    """Start a run and print its id.

    Example: [bold]parley run start spec.yaml --watch[/bold]
    """
    from parley.spec.parsing import parse_spec

    text = spec.read_text()
    parse_spec(text)  # mistakes are found before anyone is called
    with dial(address, identity, coordinator) as federation:
        run = federation.start(text, request_id)
        if watch:
            if not json:
                typer.echo(run.run_id)
            _follow(run, as_json=json)
        elif json:
            print_json(_row(run))
        else:
            typer.echo(run.run_id)


@app.command()
def watch(
    run: RunId, address: Address, identity: Identity, coordinator: Coordinator = "coordinator", json: Json = False
) -> None:
    """Follow a run to its end: step, loss, accuracy, ε, bytes, time left. With --json, one event on each line.

    Example: [bold]parley run watch digits-1a2b3c4d[/bold]
    """
    with dial(address, identity, coordinator) as federation:
        _follow(federation.run(run), as_json=json)


@app.command(name="list")
def list_runs(
    address: Address,
    identity: Identity,
    coordinator: Coordinator = "coordinator",
    limit: Annotated[int, typer.Option("--limit", "-n", help="Show so many; 0 shows all.", min=0)] = 100,
    state: States = None,
    algorithm: Annotated[str, typer.Option(help="Only runs of this algorithm.")] = "",
    name: Annotated[str, typer.Option(help="Only runs whose id or name contains this.")] = "",
    json: Json = False,
) -> None:
    """List runs, newest first.

    Example: [bold]parley run list --state failed --state cancelled -n 20[/bold]
    """
    with dial(address, identity, coordinator) as federation:
        found = federation.runs(limit or None, states=state or (), algorithm=algorithm, name=name)
        rows = [_row(run) for run in found]
    if not json:
        rows = [{key: row[key] for key in ("run_id", "state", "step", "steps", "created", "reason")} for row in rows]
    show(rows, as_json=json, empty="There are no runs yet: parley run start spec.yaml")


@app.command()
def delete(
    runs: Annotated[list[str], typer.Argument(help="Runs by their ids.", metavar="RUN...")],
    address: Address,
    identity: Identity,
    coordinator: Coordinator = "coordinator",
) -> None:
    """Forget runs that have ended: their record, their events, and what the coordinator kept of them.

    What was released about labels stays in the ledger. What the parties keep stays with them.

    Example: [bold]parley run delete digits-1a2b3c4d[/bold]
    """
    with dial(address, identity, coordinator) as federation:
        for run in runs:
            federation.run(run).delete()
            typer.echo(f"{run} is forgotten")


@app.command()
def prune(
    older_than: Annotated[str, typer.Option(help="How long ago they ended, such as 12h, 30d or 8w.", metavar="TIME")],
    address: Address,
    identity: Identity,
    coordinator: Coordinator = "coordinator",
    state: States = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say which it would be.")] = False,
    json: Json = False,
) -> None:
    """Forget runs that ended long ago, as [bold]parley run delete[/bold] does.

    The coordinator does it by itself if its configuration has `retention_days`.

    Example: [bold]parley run prune --older-than 90d --dry-run[/bold]
    """
    seconds = _seconds(older_than)
    with dial(address, identity, coordinator) as federation:
        found = federation.prune(seconds, states=state or (), dry_run=dry_run)
    if json:
        print_json({"runs": found, "forgotten": not dry_run})
        return
    for run in found:
        typer.echo(run)
    verb = "would be" if dry_run else "are"
    typer.echo(f"{len(found)} runs {verb} forgotten", err=True)


def _seconds(text: str) -> float:
    """A time such as 12h, 30d or 8w."""
    units = {"h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
    number, unit = text[:-1], text[-1:]
    if unit not in units or not number.replace(".", "", 1).isdigit():
        raise typer.BadParameter(f"{text!r} is no time: write 12h, 30d or 8w", param_hint="--older-than")
    return float(number) * units[unit]


@app.command(name="show")
def show_run(
    run: RunId, address: Address, identity: Identity, coordinator: Coordinator = "coordinator", json: Json = False
) -> None:
    """Show the state of a run.

    Example: [bold]parley run show digits-1a2b3c4d[/bold]
    """
    with dial(address, identity, coordinator) as federation:
        found = federation.run(run)
        tuned = coefficient_rows(found.coefficients()) if found.state == "COMPLETED" else []
    if json:
        print_json(_row(found) | {"coefficients": tuned, "spec": found.message.spec_yaml})
        return
    show_fields(_row(found), as_json=False)
    show_coefficients(tuned)


@app.command()
def cancel(run: RunId, address: Address, identity: Identity, coordinator: Coordinator = "coordinator") -> None:
    """Stop a run. Its last checkpoint is kept, and it can be resumed.

    Example: [bold]parley run cancel digits-1a2b3c4d[/bold]
    """
    with dial(address, identity, coordinator) as federation:
        typer.echo(f"{run} is {federation.run(run).cancel().state}")


@app.command()
def resume(
    run: RunId,
    address: Address,
    identity: Identity,
    coordinator: Coordinator = "coordinator",
    watch: Annotated[bool, typer.Option("--watch", help="Follow the run to its end.")] = False,
) -> None:
    """Go on with a run that failed or was cancelled, from its last checkpoint.

    Example: [bold]parley run resume digits-1a2b3c4d --watch[/bold]
    """
    with dial(address, identity, coordinator) as federation:
        resumed = federation.run(run).resume()
        if watch:
            _follow(resumed, as_json=False)
        else:
            typer.echo(f"{run} is {resumed.state}")


def _follow(run: "Run", *, as_json: bool) -> None:
    """Show a run to its end; a run that does not complete ends the command with exit code 1."""
    import json

    from parley.progress import Follower

    if as_json:
        for event in run.watch():
            typer.echo(json.dumps(finite(_event(event)), ensure_ascii=False))
    else:
        try:
            for _ in Follower(run, console).follow():
                pass
        except KeyboardInterrupt:
            typer.echo(f"no longer watching; the run goes on: parley run watch {run.run_id}", err=True)
            raise
    if run.state == "COMPLETED" and not as_json:
        show_coefficients(coefficient_rows(run.coefficients()))
    if run.state != "COMPLETED":
        typer.echo(f"error: {run.run_id} is {run.state}{': ' + run.reason if run.reason else ''}", err=True)
        raise typer.Exit(REFUSED)


def _event(event: Any) -> dict[str, Any]:
    from parley.services.wire.event_codec import body_of, decode_metrics

    body = body_of(event)
    return {
        "sequence": event.sequence,
        "time": event.time,
        "kind": event.kind,
        "message": event.message,
        "step": event.step,
        "metrics": decode_metrics(event.metrics),
        "body": None if body is None else asdict(body),
    }


def _row(run: "Run") -> dict[str, Any]:
    message = run.message
    return {
        "run_id": run.run_id,
        "name": message.name,
        "algorithm": message.algorithm,
        "state": run.state,
        "reason": run.reason,
        "step": run.step,
        "steps": run.steps,
        "parties": list(message.parties),
        "metrics": run.metrics,
        "created": message.created,
        "changed": message.changed,
        "attempt": message.attempt,
    }
