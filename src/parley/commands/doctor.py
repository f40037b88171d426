"""`parley doctor`: what is wrong with an installation, a configuration or a federation, and how to fix it."""

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from parley.commands.options import AddressIfAny, Coordinator, IdentityIfAny, Json
from parley.commands.refusals import REFUSED
from parley.display import console, print_json

if TYPE_CHECKING:
    from parley.doctor import Check

MARKS = {"ok": "[green]✓[/green]", "warning": "[yellow]![/yellow]", "broken": "[red]✗[/red]"}


def doctor(
    spec: Annotated[
        Path | None,
        typer.Argument(help="With --strict: a run spec that is attacked before it runs.", metavar="[SPEC.YAML]"),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Attack SPEC in every known way; an attack that succeeds must be fixed.")
    ] = False,
    config: Annotated[
        Path | None, typer.Option(help="Check a party's, coordinator's or relay's configuration before it starts.")
    ] = None,
    address: AddressIfAny = None,
    identity: IdentityIfAny = None,
    coordinator: Coordinator = "coordinator",
    json: Json = False,
) -> None:
    """Check this installation, a configuration (--config) or a federation (--address), and say what to fix.

    One line for each check: ✓ is well, ! may be meant, ✗ must be fixed. Exit code 1 if anything must be fixed.

    Example: [bold]parley doctor --config bank.yaml[/bold]

    Example: [bold]parley doctor --strict digits.yaml[/bold]
    """
    if strict != (spec is not None):
        raise typer.BadParameter("--strict and a spec belong together: parley doctor --strict digits.yaml")
    if address is not None and identity is None and config is None:
        raise typer.BadParameter("give --identity too: the folder with your client certificate")
    found: list[Check] = []
    for check in _attacked(spec) if spec is not None else _checks(config, address, identity, coordinator):
        found.append(check)
        if not json:
            _print(check)
    if json:
        print_json([asdict(check) for check in found])
    broken = sum(check.state == "broken" for check in found)
    warnings = sum(check.state == "warning" for check in found)
    if not json:
        console.print(f"{len(found)} checks: {broken} to fix, {warnings} to look at")
    if broken:
        raise typer.Exit(REFUSED)


def _checks(config: Path | None, address: str | None, identity: Path | None, coordinator: str) -> Iterable["Check"]:
    if config is not None:
        from parley.doctor_configuration import configuration

        yield from configuration(config)
        return
    from parley.doctor import installation

    yield from installation()
    if address is not None and identity is not None:
        from parley.doctor_federation import federation

        yield from federation(address, identity, coordinator)


def _attacked(spec: Path) -> Iterable["Check"]:
    """Every attack on a spec as a check."""
    from parley.attacks.suite import attack
    from parley.doctor import broken, ok
    from parley.spec.parsing import parse_spec

    for finding in attack(parse_spec(spec.read_text(encoding="utf-8"))):
        subject, told = f"{finding.attack} by the {finding.adversary}", f"{finding.recovered}; {finding.guarantee}"
        if finding.verdict in ("open", "beyond"):
            yield broken(subject, told if finding.verdict == "beyond" else finding.recovered, finding.remedy)
        else:
            yield ok(subject, told)


def _print(check: "Check") -> None:
    remedy = f" → {check.remedy}" if check.remedy else ""
    line = f"{MARKS[check.state]} [bold]{escape(check.subject)}[/bold]: {escape(check.finding + remedy)}"
    console.print(line, soft_wrap=True, highlight=False)
