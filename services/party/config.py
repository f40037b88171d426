"""A party's configuration and policy, read once at the start."""

from pydantic import Field

from services.wire.configuration import FilePath
from spec.section import Section


class TableConfig(Section):
    """A table that this party offers to runs."""

    path: FilePath
    """CSV, Parquet, NPZ or svmlight file."""
    format: str | None = None
    """`csv`, `parquet`, `npz` or `svmlight`, where the file's name does not say it."""
    id: str | None = None
    """Column that names the rows; `id` if left out, `row number` where all organisations have the same order."""
    label: str | None = None
    """The label column, which is no feature."""
    label_path: FilePath | None = None
    """The file with the labels and the ids, where they do not stand in the same one."""
    standardise: bool = False
    """Bring each column to mean 0 and standard deviation 1."""
    features: int | None = Field(default=None, ge=1)
    """Number of features (svmlight)."""


class Policy(Section):
    """What this party accepts. A run that asks for more is refused before it starts."""

    coordinators: tuple[str, ...]
    """Coordinators that may call, as their certificates name them."""
    algorithms: tuple[str, ...] = ("bambi", "fedbio", "asysqn", "ldp_dsbo")
    """Algorithms that may run here. `hgp` is not among them unless named: no mechanism hides what it sends to peers."""
    epsilon_budget: float = Field(default=10.0, gt=0)
    """ε that all runs of ldp_dsbo together may cost one record of this party; `.inf` allows runs without noise."""
    aggregations: tuple[str, ...] = ("pairwise", "two_tree")
    """Ways of summing that hide this party's values; `plain` hides nothing."""
    minimum_parties: int = Field(default=2, ge=1, le=64)
    """Fewest parties in a sum that this party adds to."""
    tables: tuple[str, ...] | None = None
    """Tables that runs may read; all if left out."""
    columns: tuple[str, ...] | None = None
    """Columns that runs may read; all if left out."""
    model_imports: tuple[str, ...] = ()
    """`package.module:function` names that may be imported as models."""
    sessions: int = Field(default=16, ge=1, le=1024)
    """Most sessions at once."""


class Coordinator(Section):
    """Where this party announces itself when it comes up."""

    name: str
    """The coordinator, as its certificate names it."""
    address: str
    """host:port."""


class PartyConfig(Section):
    """A party service."""

    name: str
    """This party; must be what its certificate says."""
    listen: str = "127.0.0.1:0"
    """host:port to serve on; port 0 takes a free one."""
    identity: FilePath
    """Directory with the certificate, the key and the authority."""
    state: FilePath
    """Directory for checkpoints, models and the database."""
    database: str | None = None
    """SQLAlchemy URL; a SQLite file in `state` if left out."""
    coordinator: Coordinator | None = None
    """Whom to tell when this party comes up."""
    tables: dict[str, TableConfig]
    """Tables by name."""
    policy: Policy
    """What this party accepts."""
    metrics_listen: str | None = None
    """host:port for Prometheus; plain HTTP on loopback, elsewhere TLS with a client certificate; none if left out."""
    threads: int = Field(default=1, ge=1, le=256)
    """Threads of torch."""

    @property
    def database_url(self) -> str:
        """`database`, with its default filled in."""
        return self.database or f"sqlite:///{self.state / 'party.db'}"
