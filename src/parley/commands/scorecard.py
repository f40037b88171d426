"""`parley scorecard`: points for each bin of each column, by party, from a logistic model on weights of evidence."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from parley.commands.coefficients import own_coefficients
from parley.commands.explore import Found, told
from parley.commands.options import AddressIfAny, Coordinator, IdentityIfAny, Json, RunId, dial
from parley.commands.refusals import Refused
from parley.display import print_json, show

if TYPE_CHECKING:
    from parley.numerics.scorecards import Scale

INTERCEPT = "(intercept)"


def scorecard(
    run: RunId,
    address: AddressIfAny = None,
    identity: IdentityIfAny = None,
    coordinator: Coordinator = "coordinator",
    config: Annotated[
        Path | None,
        typer.Option(help="A party's configuration: its own part, with all digits.", metavar="PARTY.YAML"),
    ] = None,
    points: Annotated[float, typer.Option(help="The score at --odds.")] = 600.0,
    odds: Annotated[float, typer.Option(help="Of the first class against the second.", min=1e-6)] = 50.0,
    double: Annotated[float, typer.Option(help="Points that double the odds.", min=1e-6)] = 20.0,
    json: Json = False,
) -> None:
    """Show the points of a scorecard, for each bin of each column, by party.

    RUN is a logistic regression (`algorithm: glm`) whose spec has `binned_by`. A row's score is the sum of its points
    over all parties. Parties tell as much as their policies share; a party's owner reads its own part with --config.

    Example: [bold]parley scorecard credit-1a2b3c4d --points 600 --odds 50 --double 20[/bold]
    """
    from parley.numerics.scorecards import Scale

    scale, kept = Scale(points, odds, double), list[str]()
    if config is not None:
        coefficients, bins = _own(run, config)
    elif address is None or identity is None:
        raise typer.BadParameter("say whom to ask: --address and --identity, or --config at a party")
    else:
        with dial(address, identity, coordinator) as federation:
            found = federation.run(run)
            explored = yaml.safe_load(found.message.spec_yaml).get("binned_by")
            if not explored:
                raise Refused(f"{run} has no bins: train a glm whose spec has `binned_by`")
            answers = found.coefficients()
            coefficients = {(p, c): v for p, one in answers.items() for c, v in one.columns.items()}
            known, kept = told(federation.run(explored).coefficients())
            bins = _bins(known)
    rows = card_rows(coefficients, bins, scale)
    if not rows and not kept:
        raise Refused(f"{run} has no coefficients here, or has not finished")
    if json:
        print_json(rows)
        return
    show(rows, as_json=False, title="Scorecard")
    for sentence in kept:
        typer.echo(sentence)


def card_rows(
    coefficients: Mapping[tuple[str, str], float],
    bins: Mapping[tuple[str, str], Sequence[tuple[float | None, float]]],
    scale: "Scale",
) -> list[dict[str, Any]]:
    """One row for each bin of each column that has a coefficient, and one for what every row begins with."""
    rows: list[dict[str, Any]] = []
    for (party, column), value in coefficients.items():
        if column == INTERCEPT:
            begins = {"bin": None, "up to": None, "woe": None, "points": scale.of_intercept(value)}
            rows.append({"party": party, "column": column} | begins)
        for number, (up_to, weight) in enumerate(bins.get((party, column), ()), 1):
            found = {"bin": number, "up to": up_to, "woe": weight, "points": scale.of_bin(value, weight)}
            rows.append({"party": party, "column": column} | found)
    return rows


def _bins(found: Found) -> dict[tuple[str, str], list[tuple[float | None, float]]]:
    """Upper ends and weights of evidence, by party and column."""
    told_of = {}
    for place, known in found.items():
        count = sum(name.startswith("bin ") and name.endswith(" woe") for name in known)
        told_of[place] = [(known.get(f"bin {n} up to"), known[f"bin {n} woe"]) for n in range(1, count + 1)]
    return told_of


def _own(run: str, config: Path) -> tuple[dict[tuple[str, str], float], dict[tuple[str, str], Any]]:
    """A party's own part, read where it lies: its coefficients, and the bins that its rows were put in."""
    from parley.services.party.checkpoints import Store
    from parley.services.party.config import PartyConfig
    from parley.services.wire.configuration import load_config
    from parley.tables.preprocessing import Fitted

    name, found = own_coefficients(run, config)
    kept = Store(load_config(config, PartyConfig).state).load_preprocessing(run)
    fitted = None if kept is None else Fitted.from_json(kept)
    if fitted is None or not fitted.bins:
        raise Refused(f"{run} has no bins here: train a glm whose spec has `binned_by`")
    bins = {(name, one.column): list(zip([*one.edges, None], one.values, strict=True)) for one in fitted.bins}
    return {(name, one.column): one.value for one in found if not one.figure}, bins
