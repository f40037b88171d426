"""`parley approve`: a party's owner says yes to a spec, by its digest."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parley.commands.options import Json
from parley.commands.refusals import Refused
from parley.display import show, show_fields

if TYPE_CHECKING:
    from parley.services.party.approvals import AskedSpec


class NothingToApprove(Refused):
    """The digest names no spec that a coordinator has come with."""


def approve(
    digest: Annotated[
        str | None, typer.Argument(help="SHA-256 of the spec, as the refusal or --list shows it.", metavar="[DIGEST]")
    ] = None,
    config: Annotated[Path, typer.Option(help="The party's configuration.", metavar="PARTY.YAML")] = Path("party.yaml"),
    list_: Annotated[bool, typer.Option("--list", help="List the specs that coordinators came with.")] = False,
    revoke: Annotated[bool, typer.Option("--revoke", help="Take an approval back.")] = False,
    json: Json = False,
) -> None:
    """Approve a spec at a party whose policy says `approval: required`. Without it the party takes part in nothing.

    Example: [bold]parley approve --list --config party.yaml[/bold]
    """
    from parley.services.party.approvals import Approvals, DigestUnknown
    from parley.services.party.config import PartyConfig
    from parley.services.wire.configuration import load_config

    approvals = Approvals(load_config(config, PartyConfig).state)
    if list_ == (digest is not None) or (list_ and revoke):
        raise typer.BadParameter("give the digest of one spec, or --list")
    if digest is None:
        show([_summary(asked) for asked in approvals.asked()], as_json=json, empty="No spec waits for approval.")
        return
    try:
        asked = approvals.revoke(digest) if revoke else approvals.approve(digest)
    except DigestUnknown as unknown:
        raise NothingToApprove(str(unknown)) from None
    show_fields(_summary(asked) | {"approved": not revoke}, as_json=json)


def _summary(asked: "AskedSpec") -> dict[str, Any]:
    from parley.spec.parsing import parse_spec

    spec = parse_spec(asked.spec_yaml)
    aggregation, labels = spec.privacy.aggregation, spec.privacy.labels
    return {
        "digest": asked.digest,
        "approved": asked.approved,
        "coordinator": asked.coordinator,
        "asked": datetime.fromtimestamp(asked.asked, UTC).isoformat(timespec="seconds"),
        "name": spec.name,
        "algorithm": spec.train.algorithm,
        "parties": [entry.name for entry in spec.parties],
        "tables": sorted({spec.table_of(index) for index in range(len(spec.parties))} | set(spec.train.tables)),
        "columns": {entry.name: list(entry.columns) for entry in spec.parties if entry.columns is not None},
        "sums": f"{aggregation.kind}, at least {aggregation.minimum_parties} parties",
        "labels": "off" if labels.mechanism == "off" else f"{labels.mechanism}, ε = {labels.epsilon:g}",
    }
