"""`parley simulate`: a spec with hundreds of parties, in one process."""

import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from parley.display import console, show_fields, size


def simulate(
    spec: Annotated[Path, typer.Argument(help="The run's spec; its `parties` are replaced.", metavar="SPEC")],
    parties: Annotated[int, typer.Option("--parties", min=1, max=1024, help="How many parties to simulate.")],
    data: Annotated[
        str, typer.Option("--data", help="digits, breast_cancer, wine, iris, a file, or an MNIST folder.")
    ] = "digits",
    label: Annotated[str | None, typer.Option("--label", help="The label column of a file.")] = None,
    limit: Annotated[int | None, typer.Option("--limit", help="Take that many rows.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run a spec with many simulated parties on this machine, through the code of real ones.

    The rows (or columns, where the algorithm joins columns) of a data set are dealt out among them. Roles, codecs and
    secure sums are those of a deployed run, so the models are the same, bit for bit; there is no network between them,
    and nothing is protected from this process.

    Example: [bold]parley simulate run.yaml --parties 500 --data digits[/bold]
    """
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from parley.simulation.many import deal_out, with_parties
    from parley.simulation.many import simulate as run

    read = with_parties(spec.read_text(encoding="utf-8"), parties)
    trips = TextColumn("round trip {task.completed}")
    columns = (SpinnerColumn(), trips, TimeElapsedColumn(), TextColumn("{task.description}"))
    live = Progress(*columns, console=console) if console.is_terminal and not json else None
    with tempfile.TemporaryDirectory(prefix="parley-simulate-") as scratch, live or nullcontext():
        task = live.add_task("reading tables") if live is not None else None
        stores, labels = deal_out(read, data, Path(scratch), label_column=label, limit=limit)

        def watch(count: int, metrics: dict[str, float]) -> None:
            if live is not None and task is not None:
                told = "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())
                live.update(task, completed=count, description=told)

        found = run(read, stores, labels, watch)
    fields = {
        "parties": parties,
        "sampled": read.sampled,
        "round trips": found.rounds,
        "setup seconds": round(found.setup_seconds, 3),
        "seconds": round(found.seconds, 3),
        "milliseconds of a round trip": round(1000 * found.seconds / found.rounds, 2),
        "memory": found.memory_bytes if json else size(found.memory_bytes),
        "metrics": found.metrics if json else "  ".join(f"{n} {v:.4g}" for n, v in found.metrics.items()),
    }
    show_fields(fields, as_json=json)
