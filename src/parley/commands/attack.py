"""`parley attack`: what an adversary would recover from a run, against what its spec guarantees."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parley.commands.refusals import REFUSED
from parley.commands.results import JsonFile
from parley.display import console, print_table, table_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from parley.attacks.findings import Finding


EVERYTHING = Path("all")


def attack(
    subject: Annotated[
        Path,
        typer.Argument(
            help="A run spec before it runs, the folder of a recorded run, or `all`: every protection, without and "
            "with it.",
            metavar="SPEC.YAML|FOLDER|all",
        ),
    ],
    only: Annotated[str, typer.Option(help="Names of attacks, with commas between; all if left out.")] = "",
    quick: Annotated[bool, typer.Option("--quick", help="Leave out the attacks that train whole models.")] = False,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Exit code 1 also where an attack succeeds that nothing was guaranteed against."),
    ] = False,
    json: JsonFile = None,
) -> None:
    """Attack a spec in every known way, on made-up tables in this process, and say what was recovered.

    Each line has what the attack recovered, what the settings guarantee, and the margin between them. Features and
    labels of the made-up tables are random: whatever is found was found in what crosses. Exit code 1 if an attack
    succeeds beyond its guarantee.

    A folder is a run that was recorded: sums.npz with columns.npz, or noisy.npz with labels.npz and spec.yaml. `all`
    mounts the attacks on settings of our own, without and with each protection (the table of docs/attacks.md).

    The file of --json has what was recovered, the bound and the excess over it, each as a share between 0 and 1; where
    nothing is guaranteed the bound is 1, and where an attack was refused what it needs both are 0.

    Example: [bold]parley attack digits.yaml[/bold]

    Example: [bold]parley attack digits.yaml --only labels,columns --json found.json[/bold]

    Example: [bold]parley attack all --quick --json found.json[/bold]
    """
    from parley.modules import write_rows

    found = list(_mounted(subject, tuple(name.strip() for name in only.split(",") if name.strip()), quick=quick))
    if found:
        print_table(table_of([brief(setting, finding) for setting, finding in found]))
    else:
        console.print("No attack applies to this spec.")
    if subject != EVERYTHING:
        for _, finding in found:
            if finding.remedy and finding.verdict in ("open", "beyond"):
                console.print(f"{finding.attack}: {finding.remedy}", soft_wrap=True, highlight=False)
    if json is not None:
        rows = [row for setting, finding in found for row in rows_of(setting, finding)]
        write_rows(json, subject.stem, rows, quick=quick)
    if any(is_failure(finding, strict=strict) for _, finding in found):
        raise typer.Exit(REFUSED)


def _mounted(subject: Path, names: tuple[str, ...], *, quick: bool) -> "Iterator[tuple[str, Finding]]":
    """Each finding with the setting that it is under: a spec's name, a folder's, or that of a protection."""
    from parley.attacks.protections import attack_protections
    from parley.attacks.recordings import attack_recording
    from parley.attacks.suite import attack as mount
    from parley.spec.parsing import parse_spec

    if subject == EVERYTHING:
        if names:
            raise typer.BadParameter("`all` mounts every attack: name a spec for --only")
        yield from attack_protections(quick=quick)
        return
    found = (
        attack_recording(subject)
        if subject.is_dir()
        else mount(parse_spec(subject.read_text(encoding="utf-8")), names, quick=quick)
    )
    yield from ((subject.stem, finding) for finding in found)


def is_failure(finding: "Finding", *, strict: bool) -> bool:
    """Whether a finding ends the command with exit code 1."""
    return finding.verdict == "beyond" or (strict and finding.verdict == "open")


def brief(setting: str, finding: "Finding") -> dict[str, Any]:
    """A line of the table."""
    margin = finding.margin
    return {
        "setting": setting,
        "attack": finding.attack,
        "by": finding.adversary,
        "recovered": finding.recovered,
        "guarantee": finding.guarantee,
        "margin": "" if margin is None else f"{margin:+.2f}",
        "verdict": finding.verdict,
    }


def rows_of(setting: str, finding: "Finding") -> list[dict[str, Any]]:
    """A finding's figures as rows of a file of results."""
    told = {"by": finding.adversary, "guarantee": finding.guarantee, "verdict": finding.verdict}
    return [
        {"case": f"{finding.attack} × {setting}", "metric": metric, "ours": share} | told
        for metric, share in finding.shares.items()
    ]
