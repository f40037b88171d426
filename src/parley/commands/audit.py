"""`parley audit`: who did what at a service, when and from where."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from parley.commands.options import Json
from parley.display import console, print_table, table_of

SHOWN = ("time", "role", "name", "address", "action", "subject", "outcome")


def audit(
    config: Annotated[Path, typer.Option(help="The configuration of a party or of a coordinator.", metavar="FILE")],
    last: Annotated[int, typer.Option(help="Show no more than this many lines, the newest; 0 for all.", min=0)] = 50,
    json: Json = False,
) -> None:
    """Show a service's audit trail: who did what, when, from where, and what was refused; JSON lines with --json.

    The whole trail is checked first: a line that was changed, or taken out, is an error. It is read where it lies.

    Example: [bold]parley audit --config coordinator.yaml --last 0 --json > audit.jsonl[/bold]
    """
    import json as jsons

    from parley.configurations import load_service_config
    from parley.services.wire.audit import read_trail

    entries = list(read_trail(load_service_config(config).state))
    chosen = entries[-last:] if last else entries
    if json:
        for entry in chosen:
            sys.stdout.write(jsons.dumps(asdict(entry)) + "\n")
        return
    if not entries:
        console.print("Nobody has asked for anything here yet.")
        return
    print_table(table_of([{name: asdict(entry)[name] for name in SHOWN} for entry in chosen]))
    told = f"{len(entries)} lines, unbroken; the newest seals all: {entries[-1].digest}"
    console.print(told, highlight=False, soft_wrap=True)
