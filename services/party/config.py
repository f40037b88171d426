"""A party's configuration and policy, read once at the start."""

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from parley.privacy.coefficients import Sharing
from parley.services.wire.configuration import FilePath
from parley.services.wire.table_sources import TableSource
from parley.spec.algorithms import installed_names
from parley.spec.nearest import did_you_mean
from parley.spec.section import Section
from parley.tables.preprocessing import Declared


class CategoricalConfig(Section):
    """Columns with categories."""

    columns: tuple[str, ...] = Field(min_length=1)
    """Their names."""
    encoding: Literal["one_hot"] = "one_hot"
    """One column of 0 and 1 for each category."""
    max_categories: int = Field(default=50, ge=2, le=10_000)
    """Most columns that one column may become; the rarest categories share the last of them."""
    categories: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Categories of a column, where they are fixed rather than learnt; runs over rows of the same columns need it."""


class PreprocessConfig(Section):
    """What is done to a table before a run sees it, fitted on the run's training rows."""

    missing: Literal["refuse", "mean", "median", "most_frequent"] = "refuse"
    """What fills a missing number; a missing category becomes the most frequent one, unless `refuse`."""
    categorical: CategoricalConfig | None = None
    """Columns with categories; without it text is refused."""
    scale: Literal["none", "standard", "minmax", "max_abs"] = "none"
    """How numbers are scaled; a sparse table takes `max_abs`."""

    @property
    def declared(self) -> Declared:
        """The same for `parley.tables.preprocessing`."""
        encoded = self.categorical
        if encoded is None:
            return Declared(self.missing, scale=self.scale)
        return Declared(self.missing, encoded.columns, encoded.categories, encoded.max_categories, self.scale)


class TableConfig(TableSource):
    """A table that this party offers to runs."""

    id: str | None = None
    """Column that names the rows; `id` if left out, `"#row"` where all organisations have the same order."""
    label: str | None = None
    """The label column, which is no feature."""
    label_path: FilePath | None = None
    """The file with the labels and the ids, where they do not stand in the same one."""
    standardise: bool = False
    """Bring each column to mean 0 and standard deviation 1, over all rows; see also `preprocess`."""
    preprocess: PreprocessConfig | None = None
    """Fill missing values, encode categories and scale, as the training rows of each run teach."""
    features: int | None = Field(default=None, ge=1)
    """Number of features (svmlight)."""
    zero_based: bool = False
    """Whether the features are counted from 0 (svmlight)."""

    @model_validator(mode="after")
    def _one_scaling(self) -> Self:
        if self.standardise and self.preprocess is not None:
            raise ValueError("`standardise` and `preprocess` exclude each other: write `preprocess: {scale: standard}`")
        return self


class AlignmentPolicy(Section):
    """Whether and how often the ids of this party may be compared with others'."""

    allowed: bool = True
    """Whether rows may be aligned at all."""
    minimum_matches: int = Field(default=30, ge=1)
    """Fewest ids that must be common before anyone learns which; also the fewest that a coordinator may come with."""
    per_day: int = Field(default=10, ge=0)
    """Most alignments of one table by one coordinator within 24 hours."""


class Policy(Section):
    """What this party accepts. A run that asks for more is refused before it starts."""

    coordinators: tuple[str, ...]
    """Coordinators that may call, as their certificates name them."""
    algorithms: tuple[str, ...]
    """Algorithms that may run here, by name; code of others is not even imported."""
    epsilon_budget: float = Field(default=10.0, gt=0)
    """ε that all runs with local privacy together may cost one record; `.inf` allows runs without noise."""
    aggregations: tuple[Literal["pairwise", "two_tree", "plain"], ...] = ("pairwise", "two_tree")
    """Ways of summing that hide this party's values; `plain` hides nothing."""
    minimum_parties: int = Field(default=2, ge=1, le=64)
    """Fewest parties in a sum that this party adds to."""
    tables: tuple[str, ...] | None = None
    """Tables that runs may read; all if left out."""
    columns: tuple[str, ...] | None = None
    """Columns that runs may read; all if left out."""
    model_imports: tuple[Annotated[str, Field(pattern=r"^[\w.]+:\w+$")], ...] = ()
    """`package.module:function` names that may be imported as models."""
    changed_data: Literal["refuse", "restart"] = "refuse"
    """When a run is resumed on a table whose values have changed: refuse it, or let it begin anew."""
    coefficients: Sharing = "party"
    """What may leave of coefficients that a run has tuned: `nothing`, one number for the whole `party`, or those of
    all its `columns` by name."""
    sessions: int = Field(default=16, ge=1, le=1024)
    """Most sessions at once."""
    alignment: AlignmentPolicy = AlignmentPolicy()
    """Entity alignment."""

    @field_validator("algorithms")
    @classmethod
    def _known(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        known = installed_names()
        for name in value:
            if name not in known:
                hint = did_you_mean(name, known) or f": there are {', '.join(known)}"
                raise ValueError(f"{name!r} is no algorithm that is installed here{hint}")
        return value


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

    @model_validator(mode="after")
    def _opens_own_tables(self) -> Self:
        for name in self.policy.tables or ():
            if name not in self.tables:
                hint = did_you_mean(name, self.tables) or f": there are {', '.join(self.tables)}"
                raise ValueError(f"`policy.tables` opens {name!r}, which this party does not have{hint}")
        return self

    @property
    def database_url(self) -> str:
        """`database`, with its default filled in."""
        return self.database or f"sqlite:///{self.state / 'party.db'}"

    @property
    def has_database(self) -> bool:
        """Whether there is a database already: the file is made by the first run that charges the ledger."""
        return self.database is not None or (self.state / "party.db").exists()
