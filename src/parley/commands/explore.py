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
    rows = bin_rows(found) if bins else summary_rows(found)
    if json:
        print_json(rows)
        return
    show(rows, as_json=False, title="Bins" if bins else "Columns")
    for sentence in kept:
        typer.echo(sentence)


def told(answers: "Mapping[str, TunedCoefficients]") -> tuple[dict[tuple[str, str], dict[str, float]], list[str]]:
    """Figures that parties share, and why others do not."""
    found = {(party, column): known for party, one in answers.items() for column, known in one.figures.items()}
    return found, [one.kept for one in answers.values() if one.kept]


def summary_rows(found: Found) -> list[dict[str, Any]]:
    """One row for each column."""
    names = list(dict.fromkeys(name for known in found.values() for name in known if not name.startswith("bin ")))
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
