"""`parley upgrade`: bring a service's state to this version's layout, before the service starts."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parley.commands.options import Json
from parley.display import show

if TYPE_CHECKING:
    from parley.storage.migrations import History


def upgrade(
    config: Annotated[Path, typer.Option(help="The configuration of a party or of a coordinator.", metavar="FILE")],
    check: Annotated[bool, typer.Option("--check", help="Only say what would be done.")] = False,
    json: Json = False,
) -> None:
    """Bring the database of a service that is stopped to the layout of this version. Nothing is lost.

    A service does the same when it starts. Make a backup first ([bold]parley backup[/bold]): older versions do not open
    what this one has changed.

    Example: [bold]parley upgrade --config coordinator.yaml --check[/bold]
    """
    from parley.configurations import is_coordinators, load_service_config
    from parley.services.wire.state_directory import prepare_state
    from parley.storage import migrations
    from parley.storage.engines import open_engine, require_whole
    from parley.storage.leases import take_lease

    service = load_service_config(config)
    if not (is_coordinators(config) or getattr(service, "has_database", False)):
        show([], as_json=json, empty="This party has no database yet: there is nothing to upgrade.")
        return
    prepare_state(service.state)  # refused while the service runs
    lease = take_lease(service.database_url, service.name) if is_coordinators(config) else None
    require_whole(service.name, service.database_url)
    rows: list[dict[str, Any]] = []
    engine = open_engine(service.database_url)
    try:
        for history in _histories(coordinator=is_coordinators(config)):
            with engine.connect() as connection:
                found = migrations.revision_of(connection, history)
            if not check:
                migrations.upgrade(engine, history)
            had = found or "none"
            rows.append({"holds": history.name, "had": had, "has": had if check else history.newest})
            rows[-1]["newest"] = history.newest
    finally:
        engine.dispose()
        del lease
    show(rows, as_json=json)


def _histories(*, coordinator: bool) -> "list[History]":
    from parley.privacy.ledger import HISTORY as LEDGER

    if coordinator:
        from parley.privacy.evaluations import HISTORY as EVALUATIONS
        from parley.services.coordinator.registry_tables import HISTORY as REGISTRY

        return [REGISTRY, LEDGER, EVALUATIONS]
    from parley.services.party.exposure_tables import HISTORY as EXPOSURE

    return [LEDGER, EXPOSURE]
