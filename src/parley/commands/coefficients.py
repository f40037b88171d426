"""`parley run coefficients`: what a run has found, by party and column: tuned coefficients, or a linear model's."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parley.commands.options import AddressIfAny, Coordinator, IdentityIfAny, Json, RunId, dial
from parley.commands.refusals import Refused
from parley.display import print_json, show

if TYPE_CHECKING:
    from parley.client import TunedCoefficients
    from parley.privacy.coefficients import Coefficient

WHOLE = "all columns"
VIF = "vif"
"""Variance inflation: 1/(1 − R²) of a column given all others."""
INFERENCE = ("standard_error", "p_value", "low", "high")


def coefficients(
    run: RunId,
    address: AddressIfAny = None,
    identity: IdentityIfAny = None,
    coordinator: Coordinator = "coordinator",
    config: Annotated[
        Path | None,
        typer.Option(
            help="A party's configuration: read all of its own coefficients where they lie.", metavar="PARTY.YAML"
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Show the coefficients that a run has found, by party and column: of a linear model, or of tuned penalties.

    Parties tell as much as their policies share. A party's owner reads all of its own with --config.

    Example: [bold]parley run coefficients cancer-1a2b3c4d[/bold]
    """
    if config is not None:
        party, found = own_coefficients(run, config)
        inflated = {one.column: one.value for one in found if one.figure == VIF}
        rows = [
            _row(party, one.column or WHOLE, one.value, _inference(one), inflated.get(one.column))
            for one in found
            if not one.figure
        ]
    elif address is None or identity is None:
        raise typer.BadParameter("say whom to ask: --address and --identity, or --config at a party")
    else:
        with dial(address, identity, coordinator) as federation:
            rows = coefficient_rows(federation.run(run).coefficients())
    if json:
        print_json(rows)
        return
    if not rows:
        raise Refused(
            f"{run} has no coefficients to show, or has not finished: they belong to linear models (`algorithm: glm`) "
            "and to `problem: hyper_parameters`"
        )
    show_coefficients(rows)


def coefficient_rows(found: Mapping[str, "TunedCoefficients"]) -> list[dict[str, Any]]:
    """One row for each coefficient, and one for each party that keeps its own."""
    rows: list[dict[str, Any]] = []
    for party, tuned in found.items():
        values = ({WHOLE: tuned.whole} if tuned.whole is not None else {}) | tuned.columns
        rows += [
            _row(party, column, value, tuned.inference.get(column), tuned.figures.get(column, {}).get(VIF))
            for column, value in values.items()
        ]
        if tuned.kept:
            rows.append(_row(party, "", None, kept=tuned.kept))
    return rows


def show_coefficients(rows: list[dict[str, Any]]) -> None:
    """Print them as a table; nothing if there are none."""
    if rows:
        used = {name for row in rows for name, value in row.items() if value not in ("", None)}
        shown = [{name: value for name, value in row.items() if name in {*used, "coefficient"}} for row in rows]
        show(shown, as_json=False, title="Coefficients")


def own_coefficients(run: str, config: Path) -> tuple[str, "list[Coefficient]"]:
    """A party's name and all that a run has found there, read where it lies."""
    from parley.party.roles import CheckpointMissing
    from parley.services.party.checkpoints import ModelMissing, Store
    from parley.services.party.config import PartyConfig
    from parley.services.party.results import coefficients_of
    from parley.services.wire.configuration import load_config

    settings = load_config(config, PartyConfig)
    try:
        return settings.name, coefficients_of(Store(settings.state), run, settings.policy.algorithms)
    except (CheckpointMissing, ModelMissing) as error:
        raise Refused(str(error)) from None


def _inference(one: "Coefficient") -> dict[str, float | None]:
    return {name: getattr(one, name) for name in INFERENCE}


def _row(
    party: str,
    column: str,
    value: float | None,
    known: Mapping[str, float | None] | None = None,
    inflation: float | None = None,
    kept: str = "",
) -> dict[str, Any]:
    inferred = {name: (known or {}).get(name) for name in INFERENCE}
    return {"party": party, "column": column, "coefficient": value} | inferred | {VIF: inflation, "kept": kept}
