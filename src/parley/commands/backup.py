"""`parley backup` and `parley restore`: a service's state as one file, and back."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from parley.display import console

Config = Annotated[Path, typer.Option(help="The configuration of a party or of a coordinator.", metavar="FILE")]


def backup(
    config: Config,
    out: Annotated[Path, typer.Option(help="The archive to write, such as bank.tar.gz.", metavar="ARCHIVE")],
) -> None:
    """Copy a service's state into one file, while the service goes on: databases, keys of noise, checkpoints, models.

    The archive is as secret as the state. Certificates and configuration are not in it, nor a PostgreSQL database.

    Example: [bold]parley backup --config party.yaml --out bank.tar.gz[/bold]
    """
    from parley.configurations import load_service_config
    from parley.services.wire.version import VERSION
    from parley.storage.backups import make_backup

    service = load_service_config(config)
    database = _sqlite(service.database_url)
    made = datetime.now(UTC).isoformat(timespec="seconds")
    count = make_backup(service.state, database, out, role=_role(config), name=service.name, version=VERSION, made=made)
    console.print(f"Wrote {count} files to {out}.", soft_wrap=True)
    if database is None:
        console.print("The database is not among them: back it up with its own tool, such as pg_dump, after this.")


def restore(
    archive: Annotated[Path, typer.Argument(help="What `parley backup` wrote.", metavar="ARCHIVE")],
    config: Config,
) -> None:
    """Put a backup where the configuration says that the service's state lies; nothing that is there is overwritten.

    Stop the service first, and start it afterwards: runs that were active go on.

    Example: [bold]parley restore bank.tar.gz --config party.yaml[/bold]
    """
    from parley.configurations import load_service_config
    from parley.services.wire.version import VERSION
    from parley.storage.backups import restore_backup

    service = load_service_config(config)
    database = _sqlite(service.database_url)
    count = restore_backup(archive, service.state, database, role=_role(config), name=service.name, version=VERSION)
    console.print(f"Restored {count} files to {service.state}. Start the service.", soft_wrap=True)


def _role(config: Path) -> str:
    from parley.configurations import is_coordinators

    return "coordinator" if is_coordinators(config) else "party"


def _sqlite(url: str) -> Path | None:
    """The file of a SQLite database; None for another kind."""
    import sqlalchemy as sa

    parsed = sa.make_url(url)
    return Path(parsed.database) if parsed.get_backend_name() == "sqlite" and parsed.database else None
