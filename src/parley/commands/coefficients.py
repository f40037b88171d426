"""`parley run coefficients`: what a run that tunes regularisation has found, by party and column."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parley.commands.options import AddressIfAny, Coordinator, IdentityIfAny, Json, RunId, dial
from parley.commands.refusals import Refused
from parley.display import print_json, show

if TYPE_CHECKING:
    from parley.client import TunedCoefficients

WHOLE = "all columns"


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
    """Show the regularisation coefficients that a run has tuned, by party and column.

    Parties tell as much as their policies share. A party's owner reads all of its own with --config.

    Example: [bold]parley run coefficients cancer-1a2b3c4d[/bold]
    """
    if config is not None:
        rows = _own(run, config)
    elif address is None or identity is None:
        raise typer.BadParameter("say whom to ask: --address and --identity, or --config at a party")
    else:
        with dial(address, identity, coordinator) as federation:
            rows = coefficient_rows(federation.run(run).coefficients())
    if json:
        print_json(rows)
        return
    if not rows:
        raise Refused(f"{run} tunes no coefficients, or has not finished: they belong to `problem: hyper_parameters`")
    show_coefficients(rows)


def coefficient_rows(found: Mapping[str, "TunedCoefficients"]) -> list[dict[str, Any]]:
    """One row for each coefficient, and one for each party that keeps its own."""
    rows: list[dict[str, Any]] = []
    for party, tuned in found.items():
        values = ({WHOLE: tuned.whole} if tuned.whole is not None else {}) | tuned.columns
        rows += [_row(party, column, value) for column, value in values.items()]
        if tuned.kept:
            rows.append(_row(party, "", None, tuned.kept))
    return rows


def show_coefficients(rows: list[dict[str, Any]]) -> None:
    """Print them as a table; nothing if there are none."""
    if rows:
        kept = any(row["kept"] for row in rows)
        shown = [row if kept else {name: value for name, value in row.items() if name != "kept"} for row in rows]
        show(shown, as_json=False, title="Tuned coefficients")


def _own(run: str, config: Path) -> list[dict[str, Any]]:
    from parley.party.roles import CheckpointMissing
    from parley.services.party.checkpoints import ModelMissing, Store
    from parley.services.party.config import PartyConfig
    from parley.services.party.results import coefficients_of
    from parley.services.wire.configuration import load_config

    settings = load_config(config, PartyConfig)
    try:
        found = coefficients_of(Store(settings.state), run, settings.policy.algorithms)
    except (CheckpointMissing, ModelMissing) as error:
        raise Refused(str(error)) from None
    return [_row(settings.name, one.column or WHOLE, one.value) for one in found]


def _row(party: str, column: str, value: float | None, kept: str = "") -> dict[str, Any]:
    return {"party": party, "column": column, "coefficient": value, "kept": kept}
