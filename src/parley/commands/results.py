"""`parley reproduce` and `parley bench`: results that anyone can check."""

import os
import time
from pathlib import Path
from typing import Annotated

import typer

from parley.commands.refusals import Refused
from parley.display import console, show

JsonFile = Annotated[Path | None, typer.Option("--json", help="Write the rows to this file.", metavar="FILE")]
PlotFile = Annotated[Path | None, typer.Option("--plot", help="Draw the rows into this PNG file.", metavar="FILE")]
Out = Annotated[Path | None, typer.Option(help="Write NAME.json and NAME.png into this folder.", metavar="DIR")]


def reproduce(
    name: Annotated[str, typer.Argument(help="Which one, or `all`; lists them if left out.")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="A few minutes on two cores.")] = False,
    data: Annotated[Path | None, typer.Option(help="Folder with data sets such as mnist.", exists=True)] = None,
    json: JsonFile = None,
    plot: PlotFile = None,
    out: Out = None,
) -> None:
    """Reproduce a table or figure of the papers, and print our figures beside theirs.

    Example: [bold]parley reproduce fedbio-quadratic --quick --json rows.json --plot rows.png[/bold]
    """
    from parley import modules, reproduction

    offered = reproduction.offered()
    if not name:
        listed = [{"name": each, "shows": reproduction.EXPERIMENTS[each]} for each in offered]
        show(listed, as_json=False, empty="No experiments are installed here: run from a clone of the repository.")
        return
    for each in _chosen(name, offered, json, plot):
        started = time.monotonic()
        rows = reproduction.reproduce(each, quick=quick, data=data)
        seconds = round(time.monotonic() - started)
        title = f"{each}: {seconds} s{', quick' if quick else ''}"
        show(rows, as_json=False, title=title)
        rows_file, picture = _files(each, json, plot, out)
        if rows_file is not None:
            modules.write_rows(rows_file, each, rows, quick=quick, seconds=seconds, cores=os.cpu_count())
        if picture is not None:
            reproduction.draw(each, rows, picture)


def bench(
    name: Annotated[str, typer.Argument(help="Which one, or `all`; lists them if left out.")] = "",
    json: JsonFile = None,
    plot: PlotFile = None,
    out: Out = None,
) -> None:
    """Measure speed against the wire's limit and against peers.

    Example: [bold]parley bench all --out out/bench[/bold]
    """
    from parley import benchmarking, modules

    offered = benchmarking.offered()
    if not name:
        listed = [{"name": each} for each in offered]
        show(listed, as_json=False, empty="No benchmarks are installed here: run from a clone of the repository.")
        return
    for each in _chosen(name, offered, json, plot):
        rows = benchmarking.measure(each)
        show(rows, as_json=False, title=each)
        rows_file, picture = _files(each, json, plot, out)
        if rows_file is not None:
            modules.write_rows(rows_file, each, rows, cores=os.cpu_count())
        if picture is not None:
            benchmarking.draw(each, rows, picture)


def _chosen(name: str, offered: list[str], json: Path | None, plot: Path | None) -> list[str]:
    if name != "all":
        return [name]
    if json is not None or plot is not None:
        raise typer.BadParameter("with `all`, name a folder with --out instead of one file")
    if not offered:
        raise Refused("there is nothing to run here: run from a clone of the repository")
    console.print(f"Running {', '.join(offered)}")
    return offered


def _files(name: str, json: Path | None, plot: Path | None, out: Path | None) -> tuple[Path | None, Path | None]:
    if out is None:
        return json, plot
    return json or out / f"{name}.json", plot or out / f"{name}.png"
