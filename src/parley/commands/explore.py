"""`parley explore`: figures of columns that a run has found before anything is trained, by party and column."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parley.commands.coefficients import own_coefficients
from parley.commands.options import AddressIfAny, Coordinator, IdentityIfAny, Json, RunId, dial
from parley.commands.refusals import Refused
from parley.display import print_json, show

if TYPE_CHECKING:
    from parley.client import TunedCoefficients

WITH = "correlation with"
PLACE = "correlation place"
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
        bool, typer.Option("--correlations", help="Show correlations with other parties' columns, the strongest first.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(help="Draw histograms, and weights of evidence, into this file (.png, .svg, .pdf).")
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
        draw(found, plot)
    rows = correlation_rows(found) if correlations else bin_rows(found) if bins else summary_rows(found)
    if json:
        print_json(rows)
        return
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
            name = names.get(there, f"column {number}")
            rows.setdefault(
                frozenset([(party, int(known[PLACE])), there]),
                {"party": party, "column": column, "with": f"{other} {name}", "with party": other}
                | {"number": int(number), "correlation": value},
            )
    return sorted(rows.values(), key=lambda row: -abs(row["correlation"]))


def draw(found: Found, path: Path) -> None:
    """A panel for each column: shares of its bins as bars, weights of evidence as a line with an axis of its own."""
    from matplotlib.figure import Figure

    shown = {key: bin_rows({key: known}) for key, known in found.items()}
    shown = {key: rows for key, rows in shown.items() if rows}
    if not shown:
        raise Refused("there are no bins to draw: no party shares figures of its columns (`coefficients: columns`)")
    wide = min(4, len(shown))
    tall = -(-len(shown) // wide)
    figure = Figure(figsize=(3.6 * wide, 2.6 * tall), layout="constrained")
    panels = figure.subplots(tall, wide, squeeze=False).ravel()
    for panel in panels[len(shown) :]:
        panel.set_axis_off()
    for panel, ((party, column), rows) in zip(panels, shown.items(), strict=False):
        places = range(len(rows))
        panel.bar(places, [row["share"] for row in rows], color="#b9c6d6", width=0.95)
        panel.set_xticks(list(places), _bin_names(rows), fontsize=6, rotation=45, ha="right")
        panel.tick_params(axis="y", labelsize=6)
        panel.set_ylim(bottom=0)
        value = found[party, column].get("iv")
        panel.set_title(f"{party}: {column}" + ("" if value is None else f", IV {value:.3g}"), fontsize=8)
        if all(row["woe"] is not None for row in rows):
            beside = panel.twinx()
            beside.plot(places, [row["woe"] for row in rows], color="#a33", marker="o", markersize=3, linewidth=1)
            beside.axhline(0, color="#a33", linewidth=0.5, linestyle=":")
            beside.tick_params(axis="y", labelsize=6, colors="#a33")
    figure.supylabel("share of rows in each bin", fontsize=8)
    if any(row["woe"] is not None for rows in shown.values() for row in rows):
        figure.suptitle("bars: share of rows in each bin; line: weight of evidence (right axis)", fontsize=8)
    figure.savefig(path, dpi=120)


def _bin_names(rows: list[dict[str, Any]]) -> list[str]:
    """Upper ends of the bins; the last has none."""
    names = ["all" if row["up to"] is None else f"≤ {row['up to']:.3g}" for row in rows]
    return [*names[:-1], f"> {rows[-2]['up to']:.3g}"] if len(rows) > 1 else names
