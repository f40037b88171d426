"""`parley run card`: what a run trained, on what, how well, and at what price."""

from pathlib import Path
from typing import Annotated

import typer

from parley.commands.options import Address, Coordinator, Identity, RunId, dial
from parley.display import print_json, show_fields


def card(
    run: RunId,
    address: Address,
    identity: Identity,
    coordinator: Coordinator = "coordinator",
    html: Annotated[Path | None, typer.Option(help="Write the card as a page.", dir_okay=False)] = None,
    json: Annotated[str | None, typer.Option(help="Write the card as JSON; - prints it.", metavar="FILE")] = None,
) -> None:
    """Write a run's model card: spec, data digests, metrics, privacy report, parties, versions, what crossed.

    Waits until the run has ended.

    Example: [bold]parley run card digits-1a2b3c4d --html card.html --json card.json[/bold]
    """
    from parley.model_card import card_html, model_card

    with dial(address, identity, coordinator) as federation:
        found = model_card(federation, federation.run(run))
    if html is not None:
        html.write_text(card_html(found))
    if json == "-":
        print_json(found)
        return
    if json is not None:
        import json as json_format

        Path(json).write_text(json_format.dumps(found, indent=2, ensure_ascii=False) + "\n")
    summary = {**found["run"], "ε": found["privacy"]["epsilon"], **found["metrics"], **found["crossed"]["totals"]}
    show_fields(summary, as_json=False)
