"""`parley run card`: what a run trained, on what, how well, and at what price."""

from pathlib import Path
from typing import Annotated

import typer

from parley.commands.options import Address, Coordinator, Identity, Json, RunId, dial
from parley.display import json_text, print_json, show_fields


def card(
    run: RunId,
    address: Address,
    identity: Identity,
    coordinator: Coordinator = "coordinator",
    out: Annotated[
        list[Path] | None,
        typer.Option(help="Write the card to a .html or .json file; may be given twice.", dir_okay=False),
    ] = None,
    json: Json = False,
) -> None:
    """Write a run's model card: spec, data digests, metrics, privacy report, parties, versions, what crossed.

    Waits until the run has ended.

    Example: [bold]parley run card digits-1a2b3c4d --out card.html --out card.json[/bold]
    """
    from parley.model_card import card_html, model_card

    for path in out or ():
        if path.suffix not in (".html", ".json"):
            raise typer.BadParameter(f"{path}: name a file that ends in .html or .json", param_hint="--out")
    with dial(address, identity, coordinator) as federation:
        found = model_card(federation, federation.run(run))
    for path in out or ():
        path.write_text(card_html(found) if path.suffix == ".html" else json_text(found), encoding="utf-8")
    if json:
        print_json(found)
        return
    summary = {**found["run"], "ε": found["privacy"]["epsilon"], **found["metrics"], **found["crossed"]["totals"]}
    show_fields(summary, as_json=False)
