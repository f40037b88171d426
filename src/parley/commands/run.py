"""`parley run`: check, start and follow runs."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.padding import Padding

from parley.commands.coefficients import coefficient_rows, show_coefficients
from parley.commands.options import Address, AddressIfAny, Coordinator, Identity, IdentityIfAny, Json, RunId, dial
from parley.commands.refusals import REFUSED, Refused
from parley.display import console, finite, print_json, show, show_fields, size
from parley.spec.events import is_detail, with_intervals

if TYPE_CHECKING:
    from parley.client import Federation, Run
    from parley.links import Link

app = typer.Typer(no_args_is_help=True, help="Check, start and follow runs.")

States = Annotated[list[str] | None, typer.Option("--state", help="Only runs in this state; may be given again.")]
Spec = Annotated[Path, typer.Argument(help="The run's YAML file.", exists=True, dir_okay=False, metavar="SPEC")]


LinkOption = Annotated[
    str | None,
    typer.Option(help="The coordinator's link, to foretell how long messages take.", metavar="100mbit,20ms"),
]


@app.command()
def check(
    spec: Spec,
    address: AddressIfAny = None,
    identity: IdentityIfAny = None,
    coordinator: Coordinator = "coordinator",
    link: LinkOption = None,
    json: Json = False,
) -> None:
    """Find every mistake in a spec, with its line. Needs no coordinator.

    If one is named, it also foretells the rounds and bytes of the run, and with --link the time that they take.

    Example: [bold]parley run check spec.yaml --link 100mbit,20ms[/bold]
    """
    from parley.spec.parsing import check_spec

    measured = _link(link)
    problems = check_spec(spec.read_text())
    foretold = {}
    if not problems and address is not None and identity is not None:
        with dial(address, identity, coordinator) as federation:
            foretold = _foretold(federation, spec.read_text(), measured)
    elif link is not None and not problems:
        raise Refused("only a coordinator knows how many rows there are: name it with --address and --identity")
    if json:
        mistakes = [{"field": p.field, "line": p.line, "message": p.message} for p in problems]
        print_json({"problems": mistakes, "forecast": foretold or None})
    for problem in problems if not json else ():
        place = f"{spec}:{problem.line}" if problem.line else str(spec)
        what = f"{problem.field}: {problem.message}" if problem.field else problem.message
        typer.echo(f"{place}: {what}", err=True)
    if problems:
        raise typer.Exit(REFUSED)
    if not json:
        typer.echo(f"{spec}: valid")
        if foretold:
            typer.echo(_sentence(foretold))


def _link(text: str | None) -> "Link | None":
    from parley.links import Link

    try:
        return None if text is None else Link.parse(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--link") from None


def _foretold(federation: "Federation", text: str, link: "Link | None") -> dict[str, Any]:
    """What a run would send, or why nobody can tell."""
    from parley.client import RequestRefused

    try:
        found = federation.foretell(text)
    except RequestRefused as refused:
        if refused.reason != "UNFORETOLD":
            raise
        return {"unforetold": refused.message}
    seconds = {} if link is None else {"seconds": link.seconds(found)}
    return asdict(found) | seconds


def _sentence(foretold: dict[str, Any]) -> str:
    if "unforetold" in foretold:
        return f"no forecast: {foretold['unforetold']}"
    crossing = size(foretold["sent_bytes"] + foretold["received_bytes"])
    said = f"at most {foretold['rounds']} round trips and {crossing} over the coordinator's link"
    if foretold["peer_bytes"]:
        said += f", {size(foretold['peer_bytes'])} between the parties"
    return f"{said}, {foretold['seconds']:.4g} s of it for the messages" if "seconds" in foretold else said


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
    priority: Annotated[
        int, typer.Option(help="Of runs that wait for their turn, the highest goes first.", min=-100, max=100)
    ] = 0,
    link: LinkOption = None,
    json: Json = False,
) -> None:
    """Start a run and print its id. What it will send is told before, on the error output.

    If as many runs are active as may be, it waits for its turn (QUEUED).

    Example: [bold]parley run start spec.yaml --watch[/bold]
    """
    from parley.spec.parsing import parse_spec

    text, measured = spec.read_text(), _link(link)
    parse_spec(text)  # mistakes are found before anyone is called
    with dial(address, identity, coordinator) as federation:
        if not json:
            typer.echo(_sentence(_foretold(federation, text, measured)), err=True)
        run = federation.start(text, request_id, priority=priority)
        if not json and run.message.queue_position:
            typer.echo(f"it waits for its turn as {_place(run.message.queue_position)}", err=True)
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
    name: Annotated[str, typer.Option(help="Only runs whose id or name contains this, or that have this tag.")] = "",
    tag: Annotated[str, typer.Option(help="Only runs with this tag.")] = "",
    sort: Annotated[
        str | None, typer.Option(help="Sort by a field or a metric, such as created or `test accuracy`; largest first.")
    ] = None,
    json: Json = False,
) -> None:
    """List runs, newest first.

    Example: [bold]parley run list --tag baseline --sort "test accuracy" -n 20[/bold]
    """
    with dial(address, identity, coordinator) as federation:
        found = federation.runs(limit or None, states=state or (), algorithm=algorithm, name=name, tag=tag)
        rows = [_row(run) for run in found]
    if sort is not None:
        rows = _sorted(rows, sort)
    if not json:
        keys = ("run_id", "state", "step", "steps", "created", "tags", "reason")
        chosen = {} if sort is None or (rows and sort in rows[0]) else {sort: sort}
        for row in rows:
            row["reason"] = row["reason"] or _place(row["queue_position"])
        rows = [{key: row[key] for key in keys} | {name: row["metrics"].get(name) for name in chosen} for row in rows]
    show(rows, as_json=json, empty="There are no runs yet: parley run start spec.yaml")


def _place(position: int) -> str:
    return f"number {position} in the queue" if position else ""


def _sorted(rows: list[dict[str, Any]], by: str) -> list[dict[str, Any]]:
    """Rows by a field or a metric, the largest first; rows without it come last."""
    if rows and by not in rows[0] and not any(by in row["metrics"] for row in rows):
        known = sorted({name for row in rows for name in row["metrics"]})
        raise Refused(f"no run has {by!r}: sort by {', '.join(rows[0])}, or a metric: {', '.join(known)}")
    values = [row[by] if by in row else row["metrics"].get(by) for row in rows]
    have = [(value, row) for value, row in zip(values, rows, strict=True) if value is not None]
    lack = [row for value, row in zip(values, rows, strict=True) if value is None]
    return [row for _, row in sorted(have, key=lambda pair: pair[0], reverse=True)] + lack


@app.command()
def tag(
    run: RunId,
    address: Address,
    identity: Identity,
    tags: Annotated[list[str] | None, typer.Argument(help="Tags to put on it.", metavar="TAG...")] = None,
    remove: Annotated[list[str] | None, typer.Option(help="A tag to take off; may be given again.")] = None,
    coordinator: Coordinator = "coordinator",
) -> None:
    """File a run under words of yours: [bold]parley run list --tag[/bold] and the web page find it by them.

    Example: [bold]parley run tag digits-1a2b3c4d baseline --remove draft[/bold]
    """
    with dial(address, identity, coordinator) as federation:
        found = federation.run(run).tag(*(tags or ()), remove=remove or ())
    typer.echo(f"{run}: {', '.join(found.tags) or 'no tags'}")


@app.command()
def compare(
    runs: Annotated[list[str], typer.Argument(help="Two runs or more, by their ids.", metavar="RUN...")],
    address: Address,
    identity: Identity,
    coordinator: Coordinator = "coordinator",
    json: Json = False,
) -> None:
    """Show runs side by side: where their specs differ, and what each has measured.

    Example: [bold]parley run compare digits-1a2b3c4d digits-5e6f7a8b[/bold]
    """
    from parley.spec.comparison import differences

    with dial(address, identity, coordinator) as federation:
        found = [federation.run(run) for run in runs]
    ids = [run.run_id for run in found]
    settings = differences([run.message.spec_yaml for run in found])
    names = dict.fromkeys(name for run in found for name in run.metrics)
    metrics = {name: [run.metrics.get(name) for run in found] for name in names}
    if json:
        print_json({"runs": ids, "states": [run.state for run in found], "settings": settings, "metrics": metrics})
        return
    short = {name: values for name, values in metrics.items() if not is_detail(name)}
    shown = {"state": [run.state for run in found], **settings, **short}
    if len(set(ids)) < len(ids):
        raise Refused("a run is named twice: name different ones")
    rows = [{"": name, **dict(zip(ids, values, strict=True))} for name, values in shown.items()]
    show(rows, as_json=False)


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
    row = _row(found)
    show_fields(row | {"metrics": with_intervals(row["metrics"])}, as_json=False)
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
        "tags": run.tags,
        "queue_position": message.queue_position,
        "priority": message.priority,
        "started_by": message.started_by,
        "protocol": message.protocol,
    }
