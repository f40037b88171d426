"""`parley explore`: figures of columns that a run has found before anything is trained, by party and column."""

import re
from collections.abc import Mapping
from math import ceil, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parley.commands.coefficients import own_coefficients
from parley.commands.options import AddressIfAny, Coordinator, IdentityIfAny, Json, RunId, dial
from parley.commands.refusals import Refused
from parley.display import print_json, show

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from parley.client import TunedCoefficients

WITH = "correlation with"
PLACE = "correlation place"
MOST_DRAWN = 48
"""Columns in a picture; a table with thousands of categories has more than anybody can look at."""
Found = Mapping[tuple[str, str], Mapping[str, float]]
"""Figures of a party's column, by their names."""


def explore(
    run: RunId,
    address: AddressIfAny = None,
    identity: IdentityIfAny = None,
    coordinator: Coordinator = "coordinator",
    config: Annotated[
        Path | None,
        typer.Option(help="A party's configuration: read all of its own figures where they lie.", metavar="PARTY.YAML"),
    ] = None,
    bins: Annotated[bool, typer.Option("--bins", help="Show the bins of each column.")] = False,
    correlations: Annotated[
        bool, typer.Option("--correlations", help="Show correlations between columns, the strongest first.")
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            help="Draw histograms and weights of evidence, or with --correlations these, into this file "
            "(.png, .svg, .pdf)."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Show what a run of `algorithm: explore` has found: figures of each column, by party.

    Parties tell as much as their policies share. A party's owner reads all of its own with --config.

    Example: [bold]parley explore credit-1a2b3c4d --bins[/bold]
    """
    kept: list[str] = []
    if config is not None:
        name, coefficients = own_coefficients(run, config)
        found: dict[tuple[str, str], dict[str, float]] = {}
        for one in coefficients:
            if one.figure:
                found.setdefault((name, one.column), {})[one.figure] = one.value
    elif address is None or identity is None:
        raise typer.BadParameter("say whom to ask: --address and --identity, or --config at a party")
    else:
        with dial(address, identity, coordinator) as federation:
            found, kept = told(federation.run(run).coefficients())
    if not found and not kept:
        raise Refused(f"{run} has explored nothing, or has not finished: start a run with `algorithm: explore`")
    if plot is not None:
        draw_correlations(found, plot) if correlations else draw(found, plot)
    rows = correlation_rows(found) if correlations else bin_rows(found) if bins else summary_rows(found)
    if json:
        print_json(rows)
        return
    for row in rows if correlations else []:
        del row["with party"], row["number"]  # people read them in `with`
    show(rows, as_json=False, title="Correlations" if correlations else "Bins" if bins else "Columns")
    for sentence in kept:
        typer.echo(sentence)


def told(answers: "Mapping[str, TunedCoefficients]") -> tuple[dict[tuple[str, str], dict[str, float]], list[str]]:
    """Figures that parties share, and why others do not."""
    found = {(party, column): known for party, one in answers.items() for column, known in one.figures.items()}
    return found, [one.kept for one in answers.values() if one.kept]


def summary_rows(found: Found) -> list[dict[str, Any]]:
    """One row for each column."""
    names = list(
        dict.fromkeys(
            name for known in found.values() for name in known if not name.startswith(("bin ", "correlation "))
        )
    )
    return [
        {"party": party, "column": column} | {name: known.get(name) for name in names}
        for (party, column), known in found.items()
    ]


def bin_rows(found: Found) -> list[dict[str, Any]]:
    """One row for each bin of each column."""
    rows: list[dict[str, Any]] = []
    for (party, column), known in found.items():
        count = sum(name.endswith(" share") for name in known if name.startswith("bin "))
        for number in range(1, count + 1):
            values = {name: known.get(f"bin {number} {name}") for name in ("up to", "share", "woe")}
            rows.append({"party": party, "column": column, "bin": number} | values)
    return rows


def correlation_rows(found: Found) -> list[dict[str, Any]]:
    """One row for each two columns, the strongest first; a column whose party keeps its name goes by its number."""
    names = {(party, int(known[PLACE])): column for (party, column), known in found.items() if PLACE in known}
    rows: dict[frozenset[tuple[str, int]], dict[str, Any]] = {}
    for (party, column), known in found.items():
        for figure, value in known.items():
            if not figure.startswith(WITH):
                continue
            other, _, number = figure.removeprefix(WITH).strip().rpartition(" ")
            there = other, int(number)
            rows.setdefault(
                frozenset([(party, int(known[PLACE])), there]),
                {"party": party, "column": column}
                | {"with": f"{other} {names.get(there, f'column {number}')}", "with party": other}
                | {"number": int(number), "correlation": value},
            )
    return sorted(rows.values(), key=lambda row: -abs(row["correlation"]))


def draw(found: Found, path: Path) -> None:
    """A panel for each column: shares of its bins as bars, weights of evidence as a line; one scale of weights."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    shown = {key: rows for key, known in found.items() if (rows := bin_rows({key: known}))}
    if not shown:
        raise Refused("there are no bins to draw: no party shares figures of its columns (`coefficients: columns`)")
    known, ranked = len(shown), sorted(shown, key=lambda key: -(found[key].get("iv") or 0.0))
    chosen = set(ranked[:MOST_DRAWN])
    shown = {key: rows for key, rows in shown.items() if key in chosen}
    wide = min(4, ceil(sqrt(len(shown))))
    tall = ceil(len(shown) / wide)
    figure = Figure(figsize=(3.6 * wide, 0.4 + 2.6 * tall), layout="constrained")
    panels = figure.subplots(tall, wide, squeeze=False).ravel()
    for panel in panels[len(shown) :]:
        panel.set_axis_off()
    weights = [abs(row["woe"]) for rows in shown.values() for row in rows if row["woe"] is not None]
    for panel, ((party, column), rows) in zip(panels, shown.items(), strict=False):
        places = range(len(rows))
        panel.bar(places, [row["share"] for row in rows], color="#b9c6d6", width=0.95)
        panel.set_xticks(list(places), _bin_names(rows), fontsize=7, rotation=45, ha="right", rotation_mode="anchor")
        panel.tick_params(axis="y", labelsize=7)
        panel.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=None))
        panel.set_ylim(bottom=0)
        value = found[party, column].get("iv")
        panel.set_title(f"{party}: {column}" + ("" if value is None else f"  (IV {value:.2g})"), fontsize=9)
        if all(row["woe"] is not None for row in rows):
            beside = panel.twinx()
            beside.plot(places, [row["woe"] for row in rows], color="#a33", marker="o", markersize=3, linewidth=1)
            beside.axhline(0, color="#a33", linewidth=0.5, linestyle=":")
            beside.tick_params(axis="y", labelsize=7, colors="#a33")
            beside.set_ylim(-1.1 * max(weights), 1.1 * max(weights))  # what says little looks like it
    line = "; red line: weight of evidence, right axis, the same scale for all" if weights else ""
    few = f"; the {len(shown)} of {known} columns that say most" if len(shown) < known else ""
    figure.suptitle(f"Bars: share of rows in each bin{line}{few}", fontsize=10)
    _save(figure, path)


def draw_correlations(found: Found, path: Path) -> None:
    """A square for each two columns, by party."""
    import numpy as np
    from matplotlib.figure import Figure

    rows = correlation_rows(found)
    if not rows:
        raise Refused("there are no correlations to draw: the run's spec must say `correlations: true`, and at least "
                      "two columns be named by their owners' `correlations`")  # fmt: skip
    ends = [
        ((row["party"], row["column"]), (row["with party"], row["with"].removeprefix(f"{row['with party']} ")))
        for row in rows
    ]
    parties = list(dict.fromkeys(party for two in ends for party, _ in two))
    every = list(dict.fromkeys(one for two in ends for one in two))  # those of the strongest pairs first
    columns = sorted(every[:MOST_DRAWN], key=lambda one: (parties.index(one[0]), _natural(one[1])))
    place_of = {column: place for place, column in enumerate(columns)}
    values = np.full((len(columns), len(columns)), np.nan)
    np.fill_diagonal(values, 1.0)
    for (one, other), row in zip(ends, rows, strict=True):
        if one in place_of and other in place_of:
            here, there = place_of[one], place_of[other]
            values[here, there] = values[there, here] = row["correlation"]
    side = 2.5 + 0.28 * len(columns)
    figure = Figure(figsize=(side + 0.8, side), layout="constrained")
    panel = figure.subplots()
    panel.set_facecolor("#eee")  # not told
    drawn = panel.imshow(values, cmap="RdBu_r", vmin=-1, vmax=1)
    names = [f"{party}: {column}" for party, column in columns]
    panel.set_xticks(range(len(names)), names, fontsize=7, rotation=60, ha="right", rotation_mode="anchor")
    panel.set_yticks(range(len(names)), names, fontsize=7)
    for place in range(1, len(columns)):
        if columns[place][0] != columns[place - 1][0]:
            panel.axhline(place - 0.5, color="black", linewidth=0.8)
            panel.axvline(place - 0.5, color="black", linewidth=0.8)
    figure.colorbar(drawn, ax=panel, shrink=0.6).ax.tick_params(labelsize=7)
    few = f"; the {len(columns)} of {len(every)} that go together most" if len(columns) < len(every) else ""
    panel.set_title(f"Correlations between columns; lines part the parties{few}", fontsize=9)
    _save(figure, path)


def _save(figure: "Figure", path: Path) -> None:
    formats = figure.canvas.get_supported_filetypes()
    if path.suffix.removeprefix(".").lower() not in formats:
        raise Refused(f"{path.name} has no ending that says how to draw: take .png, .svg or .pdf")
    if not path.parent.is_dir():
        raise Refused(f"there is no folder {path.parent}: make it first")
    figure.savefig(path, dpi=120)


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """Orders column 9 before column 10."""
    return [(part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", name)]


def _bin_names(rows: list[dict[str, Any]]) -> list[str]:
    """Upper ends of the bins; the last has none."""
    names = ["all" if row["up to"] is None else f"≤ {_short(row['up to'])}" for row in rows]
    return [*names[:-1], f"> {_short(rows[-2]['up to'])}"] if len(rows) > 1 else names


def _short(value: float) -> str:
    """A few digits, thousands and millions by their letters."""
    rounded = float(f"{value:.6g}")
    if 1e6 <= abs(rounded) < 1e12:
        return f"{rounded / 1e6:g}M"
    return f"{rounded / 1e3:g}k" if 1e4 <= abs(rounded) < 1e6 else f"{rounded:g}"
