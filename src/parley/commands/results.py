"""`parley reproduce` and `parley bench`: results that anyone can check."""

import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parley.commands.refusals import Refused
from parley.display import console, show

if TYPE_CHECKING:
    from parley.reproduction import Made, Part

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
    seeds: Annotated[int | None, typer.Option(min=1, help="How many seeds; 3, or 1 with --quick.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where --out was left: parts that are there stay.")
    ] = False,
) -> None:
    """Reproduce a table or figure of the papers, and print our figures beside theirs.

    Every part (an experiment at a seed) is kept in --out as it ends. After an interruption, the same command with
    --resume makes what is missing.

    Example: [bold]parley reproduce fedbio-quadratic --quick --json rows.json --plot rows.png[/bold]
    """
    from parley import modules, reproduction

    offered = reproduction.offered()
    if not name:
        listed = [{"name": each, "shows": reproduction.EXPERIMENTS[each]} for each in offered]
        show(listed, as_json=False, empty="No experiments are installed here: run from a clone of the repository.")
        return
    if resume and out is None:
        raise typer.BadParameter("--resume goes on in the folder of an earlier --out: name it")
    chosen = _chosen(name, offered, json, plot)
    parts = [
        part for each in chosen for part in reproduction.parts_of(each, seeds or (1 if quick else reproduction.SEEDS))
    ]
    done = _earlier(parts, out, quick) if resume and out is not None else {}
    for each in chosen:
        for part in (part for part in parts if part.name == each and part not in done):
            _tell(part, parts, done, out)
            done[part] = reproduction.make(part, quick=quick, data=data)
            if out is not None:
                reproduction.keep(done[part], out)
        rows, circumstances = reproduction.joined(done[part] for part in parts if part.name == each)
        show(rows, as_json=False, title=f"{each}: {circumstances['seconds']} s{', quick' if quick else ''}")
        rows_file, picture = _files(each, json, plot, out)
        if rows_file is not None:
            modules.write_rows(rows_file, each, rows, **circumstances)
        if picture is not None:
            reproduction.draw(each, rows, picture)


def _earlier(parts: "list[Part]", out: Path, quick: bool) -> "dict[Part, Made]":
    """The parts that an interrupted command has left in the folder."""
    from parley import reproduction

    try:
        found = {part: reproduction.kept(part, out, quick=quick) for part in parts}
    except reproduction.PartsDiffer as refused:
        raise Refused(str(refused)) from None
    done = {part: made for part, made in found.items() if made is not None}
    console.print(f"Going on in {out}: {len(done)} of {len(parts)} parts are there", highlight=False, soft_wrap=True)
    return done


def _tell(part: "Part", parts: "list[Part]", done: "Mapping[Part, Made]", out: Path | None) -> None:
    """Which part begins, and how long the rest will take where earlier durations tell."""
    from parley import reproduction

    left = dict(reproduction.expected_seconds([each for each in parts if each not in done], out))
    known = [seconds for seconds in left.values() if seconds is not None]
    unknown = len(left) - len(known)
    time_left = f", about {timedelta(seconds=round(sum(known)))} left" if known else ""
    time_left += f" and {unknown} that nobody has timed" if known and unknown else ""
    console.print(f"{len(done) + 1} of {len(parts)}: {part}{time_left}", highlight=False, soft_wrap=True)


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
