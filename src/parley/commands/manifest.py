"""`parley manifest`: every field that can leave an organisation, for an auditor."""

import re
from collections.abc import Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parley.commands.options import Json
from parley.display import console, print_json, table_of

if TYPE_CHECKING:
    from parley.privacy.manifest import Entry

EVERY, WIDE = "every", 140
_AFTER_VERSION = re.compile(r"(?<=\.v\d)\.")
Algorithm = Annotated[
    str | None, typer.Argument(help="Only what can leave in runs of this algorithm.", metavar="ALGORITHM")
]


def manifest(algorithm: Algorithm = None, json: Json = False) -> None:
    """Show every field that can leave: what it is derived from, what protects it, and who sees it in the clear.

    The list holds what every run has in common, and what each algorithm that is installed here adds.

    Example: [bold]parley manifest[/bold]

    Example: [bold]parley manifest bambi --json[/bold]
    """
    from parley.privacy.manifest import OTHER_LEAKS, PUBLIC
    from parley.protocols.manifest import manifest_of, whole_manifest

    entries = whole_manifest() if algorithm is None else manifest_of(algorithm)
    users = _algorithms()
    fields = [asdict(entry) | {"algorithm": users.get(entry, EVERY)} for entry in entries]
    leaks = [asdict(leak) for leak in OTHER_LEAKS]
    if json:
        print_json({"fields": fields, "other_leaks": leaks})
        return
    for user in dict.fromkeys(field["algorithm"] for field in fields):
        own = [field for field in fields if field["algorithm"] == user]
        private = [_row(field) for field in own if field["derived_from"] != PUBLIC]
        control = [field for field in own if field["derived_from"] == PUBLIC]
        runs = "Every run" if user == EVERY else f"Runs of {user}"
        if private:
            console.print(table_of(private, f"{runs}: {len(private)} fields derived from somebody's records"))
        console.print(table_of(_by_message(control), f"{runs}: {len(control)} fields with {PUBLIC}"))
    console.print(table_of(leaks, "What can leave without being a field"))


def _algorithms() -> "dict[Entry, str]":
    """The algorithms that each entry belongs to; those that are not here belong to every run."""
    from parley.protocols.protocol import protocol_of
    from parley.spec.algorithms import installed

    users: dict[Entry, str] = {}
    for name, algorithm in installed().items():
        for entry in protocol_of(algorithm).crossings:
            users[entry] = f"{users[entry]}, {name}" if entry in users else name
    return users


def _row(field: dict[str, Any]) -> dict[str, str]:
    return {
        "field": _short(field["field"]),
        "derived from": field["derived_from"],
        "protection": field["protection"],
        "seen by": field["seen_by"],
    }


def _by_message(fields: Iterable[dict[str, Any]]) -> list[dict[str, str]]:
    """One row for the fields of a message that the same readers see."""
    groups: dict[tuple[str, str], list[str]] = {}
    for field in fields:
        message, _, name = field["field"].rpartition(".")
        groups.setdefault((message, field["seen_by"]), []).append(name)
    return [
        {"message": _short(message), "fields": ", ".join(names), "seen by": seen_by}
        for (message, seen_by), names in groups.items()
    ]


def _short(name: str) -> str:
    """A proto's name without the `parley.` that every one begins with; on two lines where the terminal is narrow."""
    name = name.removeprefix("parley.")
    return name if console.width >= WIDE else _AFTER_VERSION.sub("\n", name, count=1)
