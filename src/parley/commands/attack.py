"""`parley attack`: what an adversary would recover from a run, against what its spec guarantees."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parley.commands.options import Json
from parley.commands.refusals import REFUSED
from parley.display import console, print_json, print_table, table_of

if TYPE_CHECKING:
    from parley.attacks.findings import Finding


def attack(
    spec: Annotated[
        Path,
        typer.Argument(help="A run spec before it runs, or the folder of a recorded run.", metavar="SPEC.YAML|FOLDER"),
    ],
    only: Annotated[str, typer.Option(help="Names of attacks, with commas between; all if left out.")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="Leave out the attacks that train whole models.")] = False,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Exit code 1 also where an attack succeeds that nothing was guaranteed against."),
    ] = False,
    json: Json = False,
) -> None:
    """Attack a spec in every known way, on made-up tables in this process, and say what was recovered.

    Each line has what the attack recovered, what the settings guarantee, and the margin between them. Features and
    labels of the made-up tables are random: whatever is found was found in what crosses. Exit code 1 if an attack
    succeeds beyond its guarantee.

    A folder is a run that was recorded: sums.npz with columns.npz, or noisy.npz with labels.npz and spec.yaml.

    Example: [bold]parley attack digits.yaml[/bold]

    Example: [bold]parley attack digits.yaml --only labels,columns --json[/bold]
    """
    from parley.attacks.recordings import attack_recording
    from parley.attacks.suite import attack as mount
    from parley.spec.parsing import parse_spec

    names = tuple(name.strip() for name in only.split(",") if name.strip())
    if spec.is_dir():
        found = list(attack_recording(spec))
    else:
        found = list(mount(parse_spec(spec.read_text(encoding="utf-8")), names, quick=quick))
    if json:
        print_json([asdict(finding) | {"margin": finding.margin} for finding in found])
    elif found:
        print_table(table_of([brief(finding) for finding in found]))
        for finding in found:
            if finding.remedy and finding.verdict in ("open", "beyond"):
                console.print(f"{finding.attack}: {finding.remedy}", soft_wrap=True, highlight=False)
    else:
        console.print("No attack applies to this spec.")
    if any(is_failure(finding, strict=strict) for finding in found):
        raise typer.Exit(REFUSED)


def is_failure(finding: "Finding", *, strict: bool) -> bool:
    """Whether a finding ends the command with exit code 1."""
    return finding.verdict == "beyond" or (strict and finding.verdict == "open")


def brief(finding: "Finding") -> dict[str, Any]:
    """A line of the table."""
    margin = finding.margin
    return {
        "attack": finding.attack,
        "by": finding.adversary,
        "recovered": finding.recovered,
        "guarantee": finding.guarantee,
        "margin": "" if margin is None else f"{margin:+.2f}",
        "verdict": finding.verdict,
    }
