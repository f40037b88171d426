"""`parley coordinator`, `parley party` and `parley relay`: run a service until it is stopped."""

import runpy
import sys
from pathlib import Path
from typing import Annotated

import typer

Config = Annotated[Path, typer.Option(help="The service's YAML configuration.", exists=True, dir_okay=False)]
ReadyFile = Annotated[Path | None, typer.Option(help="Written with the address once the service listens.")]


def coordinator(config: Config, ready_file: ReadyFile = None) -> None:
    """Run a coordinator until it is stopped; the same as `python -m parley.services.coordinator`.

    Example: [bold]parley coordinator --config coordinator.yaml[/bold]
    """
    _serve("parley.services.coordinator", config, ready_file)


def party(config: Config, ready_file: ReadyFile = None) -> None:
    """Run a party until it is stopped; the same as `python -m parley.services.party`.

    Example: [bold]parley party --config bank.yaml[/bold]
    """
    _serve("parley.services.party", config, ready_file)


def relay(config: Config, ready_file: ReadyFile = None) -> None:
    """Run a relay until it is stopped; the same as `python -m parley.services.relay`.

    It carries connections to parties that only dial out. Coordinators do so for their own parties without it.

    Example: [bold]parley relay --config relay.yaml[/bold]
    """
    _serve("parley.services.relay", config, ready_file)


def _serve(module: str, config: Path, ready_file: Path | None) -> None:
    ready = [] if ready_file is None else ["--ready-file", str(ready_file)]
    sys.argv = [module, "--config", str(config), *ready]
    runpy.run_module(module, run_name="__main__")
