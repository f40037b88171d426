"""`parley export`: take a trained model out, at each organisation its own part."""

from pathlib import Path
from typing import Annotated

import typer

from parley.commands.options import AddressIfAny, Coordinator, IdentityIfAny, RunId, dial
from parley.commands.refusals import Refused
from parley.display import console, json_text


def export(
    run: RunId,
    config: Annotated[Path, typer.Option(help="The configuration of a party or of the coordinator.", metavar="FILE")],
    out: Annotated[Path, typer.Option(help="Folder for the files.", file_okay=False)],
    spec: Annotated[
        Path | None, typer.Option(help="At a party, the run's spec, where the party has not kept it.", dir_okay=False)
    ] = None,
    address: AddressIfAny = None,
    identity: IdentityIfAny = None,
    coordinator: Coordinator = "coordinator",
) -> None:
    """Export a trained model, at each organisation its own part: it never leaves through Parley.

    At a party: its block as ONNX and as a torch state dict, with its preprocessing, and a linear one as a table of
    coefficients. At the coordinator: the label head, and the model card where --address and --identity are given.

    Example: [bold]parley export digits-1a2b3c4d5e --config party.yaml --out exported[/bold]
    """
    from parley.configurations import is_coordinators

    try:
        import onnx  # noqa: F401 (an extra)
    except ImportError:
        raise Refused("ONNX files need another package: pip install 'parley-fl[export]'") from None
    files = _head(run, config, out) if is_coordinators(config) else _block(run, config, out, spec)
    if address is not None and identity is not None:
        from parley.model_card import card_html, model_card

        with dial(address, identity, coordinator) as federation:
            card = model_card(federation, federation.run(run))
        for name, text in (("card.html", card_html(card)), ("card.json", json_text(card))):
            (out / name).write_text(text, encoding="utf-8")
            files.append(out / name)
    for path in files:
        console.print(f"Wrote {path}", soft_wrap=True, highlight=False)


def _block(run: str, config: Path, out: Path, spec: Path | None) -> list[Path]:
    from parley.exporting import write_block
    from parley.party.exports import ExportRefused
    from parley.services.party.checkpoints import ModelMissing
    from parley.services.party.config import PartyConfig
    from parley.services.party.export import exported_block
    from parley.services.wire.configuration import load_config

    try:
        return write_block(exported_block(load_config(config, PartyConfig), run, spec), out)
    except (ExportRefused, ModelMissing) as refused:
        raise Refused(str(refused)) from None


def _head(run: str, config: Path, out: Path) -> list[Path]:
    from parley.exporting import write_head
    from parley.services.coordinator.config import CoordinatorConfig
    from parley.services.coordinator.heads import HeadMissing, head_of
    from parley.services.coordinator.registry import RunUnknown
    from parley.services.wire.configuration import load_config

    try:
        head, classes = head_of(load_config(config, CoordinatorConfig), run)
    except (HeadMissing, RunUnknown) as refused:
        raise Refused(str(refused)) from None
    return write_head(out, run, head.link, classes)
