"""A coordinator's configuration, read once at the start."""

from pydantic import Field

from parley.services.wire.configuration import FilePath
from parley.services.wire.table_sources import TableSource
from parley.spec.section import Section


class LabelConfig(TableSource):
    """A table of labels that runs may train on."""

    id: str | None = None
    """Column that names the rows; `id` if left out."""
    column: str = "label"
    """Column with the labels."""


class PartyAddress(Section):
    """Where a party is dialled."""

    address: str
    """host:port."""


class WebConfig(Section):
    """The web page."""

    listen: str = "127.0.0.1:0"
    """host:port to serve on; port 0 takes a free one."""
    token_file: FilePath | None = None
    """File with the token that a browser must show; made in `state` if left out."""
    insecure_http: bool = False
    """Serve plain HTTP instead of HTTPS with the coordinator's certificate, for a proxy on the same machine."""


class CoordinatorConfig(Section):
    """A coordinator service."""

    name: str
    """This coordinator; must be what its certificate says."""
    listen: str = "127.0.0.1:0"
    """host:port to serve on; port 0 takes a free one."""
    identity: FilePath
    """Directory with the certificate, the key and the authority."""
    state: FilePath
    """Directory for the database and the label key."""
    database: str | None = None
    """SQLAlchemy URL; a SQLite file in `state` if left out."""
    parties: dict[str, PartyAddress]
    """The address book: parties by name."""
    labels: dict[str, LabelConfig]
    """Label tables by name."""
    runs: int = Field(default=16, ge=1, le=1024)
    """Most runs at once."""
    retention_days: float | None = Field(default=None, gt=0, le=366_000)
    """Runs that ended longer ago are forgotten, as `parley run prune` would; kept for ever if left out."""
    web: WebConfig | None = None
    """The web page; none if left out."""

    @property
    def database_url(self) -> str:
        """Where runs and ledgers are kept."""
        return self.database or f"sqlite:///{self.state / 'coordinator.db'}"
