"""`parley demo`: a whole federation on this machine."""

from pathlib import Path
from typing import Annotated

import typer

from parley.display import console


def demo(
    out: Annotated[Path, typer.Option(help="Folder for the picture and the figures.")] = Path("out/demo"),
    keep: Annotated[bool, typer.Option("--keep", help="Keep data, certificates, state and logs too.")] = False,
    json: Annotated[
        Path | None, typer.Option("--json", help="Write the figures here; OUT/demo.json if left out.", metavar="FILE")
    ] = None,
) -> None:
    """Train three organisations' digits over mutual TLS, as real processes on this machine, in a minute or two.

    Example: [bold]parley demo --out out/demo[/bold]
    """
    from parley.demo import run_demo

    run_demo(out, json or out / "demo.json", keep=keep, console=console)
