"""`parley run variables`: what a problem of one's own has learned at the label holder, read where it lies."""

import io
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parley.commands.options import Json, RunId
from parley.commands.refusals import Refused
from parley.display import show

if TYPE_CHECKING:
    from parley.numerics.arrays import Array

SHOWN = 40
"""Most lines of a table; JSON has all."""


def variables(
    run: RunId,
    config: Annotated[Path, typer.Option(help="The coordinator's configuration.", metavar="COORDINATOR.YAML")],
    json: Json = False,
) -> None:
    """Show the upper variables that a problem of one's own (`problem: own`) has learned, on the coordinator's host.

    They never leave it otherwise. Weights of rows are numbered in the order of the rows' ids.

    Example: [bold]parley run variables weights-1a2b3c4d --config coordinator.yaml[/bold]
    """
    found = kept_variables(run, config)
    rows: list[dict[str, Any]] = [
        {"variable": name, "place": " ".join(map(str, place)), "value": float(value)}
        for name, array in found.items()
        for place, value in _entries(array)
    ]
    if json:
        show(rows, as_json=True)
        return
    show(rows[:SHOWN], as_json=False, title="Variables")
    if len(rows) > SHOWN:
        typer.echo(f"and {len(rows) - SHOWN} more: --json has all")


def kept_variables(run: str, config: Path) -> "dict[str, Array]":
    """The variables of the newest checkpoint, by name."""
    import numpy as np

    from parley.services.coordinator.config import CoordinatorConfig
    from parley.services.coordinator.registry import RunUnknown, StateMissing, open_registry
    from parley.services.wire.configuration import load_config

    registry = open_registry(load_config(config, CoordinatorConfig).database_url)
    try:
        _, _, content = registry.kept(run, registry.get(run).checkpoint or 0).partition(b"\n")
    except (RunUnknown, StateMissing) as error:
        raise Refused(f"{error}: variables are kept with checkpoints (`checkpoint_every` above 0)") from None
    finally:
        registry.close()
    if not content:
        raise Refused(f"{run} has no problem of its own at the label holder (`own.label_side`)")
    with np.load(io.BytesIO(content), allow_pickle=False) as kept:
        begins = "variable "
        return {name.removeprefix(begins): kept[name] for name in kept.files if name.startswith(begins)}


def _entries(array: "Array") -> Any:
    import numpy as np

    return np.ndenumerate(array)
