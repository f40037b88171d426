"""A party's configuration and policy, read once at the start."""

import math
from collections import Counter
from dataclasses import replace
from datetime import UTC, date, datetime
from ipaddress import ip_address
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from parley.privacy.coefficients import Sharing
from parley.privacy.dataset_ledger import DatasetTerms
from parley.services.wire.configuration import FilePath
from parley.services.wire.relay_line import RelayPlace
from parley.services.wire.table_sources import TableSource
from parley.services.wire.traces import TraceConfig
from parley.spec.algorithms import installed_names
from parley.spec.nearest import did_you_mean
from parley.spec.section import Section
from parley.tables.preprocessing import Declared
from parley.tables.row_files import Workspace
from parley.tables.spelling import DateColumn


class CategoricalConfig(Section):
    """Columns with categories."""

    columns: tuple[str, ...] = Field(min_length=1)
    """Their names."""
    encoding: Literal["one_hot", "hashed"] = "one_hot"
    """One column of 0 and 1 for each category, or `max_categories` of them, one of which its digest chooses."""
    max_categories: int = Field(default=50, ge=2, le=10_000)
    """Most columns that one column may become; the rarest categories share the last of them."""
    categories: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """A column's categories, fixed instead of learnt; needed where several parties hold rows of the same columns."""


class DateConfig(Section):
    """Columns with dates or times, which become days since a reference."""

    columns: tuple[str, ...] = Field(min_length=1)
    """Their names."""
    format: str | None = None
    """How they are written, such as `%d.%m.%Y`; ISO 8601 (`2024-01-31`, `2024-01-31T12:00`) if left out."""
    reference: date = date(2000, 1, 1)
    """The day that is 0."""
    cycles: tuple[Literal["day", "week", "year"], ...] = ()
    """Turns that each one also becomes two columns of: sine and cosine of the time of day, of the week, of the year."""

    @field_validator("format")
    @classmethod
    def _can_be_read(cls, given: str | None) -> str | None:
        if given is not None:
            try:
                datetime.strptime(datetime(2024, 1, 31, tzinfo=UTC).strftime(given), given)
            except ValueError as failure:
                raise ValueError(f"dates cannot be read by {given!r} ({failure}): write it like %d.%m.%Y") from None
        return given

    @property
    def declared(self) -> tuple[DateColumn, ...]:
        """The same for `parley.tables.preprocessing`."""
        return tuple(DateColumn(one, self.format, self.reference.isoformat(), self.cycles) for one in self.columns)


class ColumnFigures(Section):
    """What is public about a column: values become (value − shift) / scale."""

    shift: float = Field(default=0.0, allow_inf_nan=False)
    """What is subtracted, such as the middle of the column's range."""
    scale: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """What is divided by, such as half of the range."""


class PreprocessConfig(Section):
    """What is done to a table before a run sees it, fitted on the run's training rows."""

    missing: Literal["refuse", "mean", "median", "most_frequent"] = "refuse"
    """What fills a missing number; a missing category becomes the most frequent one, unless `refuse`."""
    categorical: CategoricalConfig | None = None
    """Columns with categories; without it text is refused."""
    dates: tuple[DateConfig, ...] = ()
    """Columns with dates or times: one section, or a list of them where they are written differently."""
    indicators: tuple[str, ...] = ()
    """Columns beside which another one is 1 where the value is missing; a missing category is then one of its own."""
    scale: Literal["none", "standard", "minmax", "max_abs"] = "none"
    """How numbers are scaled; a sparse table takes `max_abs`."""
    figures: dict[str, ColumnFigures] = Field(default_factory=dict)
    """Figures of columns that everybody may know and no row has taught; runs with local privacy take no others."""

    @property
    def declared(self) -> Declared:
        """The same for `parley.tables.preprocessing`."""
        encoded = self.categorical
        plain = Declared(
            self.missing, scale=self.scale, figures=self._figures, dates=self.date_columns, indicators=self.indicators
        )
        if encoded is None:
            return plain
        return replace(
            plain,
            categorical=encoded.columns,
            categories=encoded.categories,
            max_categories=encoded.max_categories,
            encoding=encoded.encoding,
        )

    @property
    def date_columns(self) -> tuple[DateColumn, ...]:
        """Every column with dates."""
        return tuple(column for one in self.dates for column in one.declared)

    @field_validator("dates", mode="before")
    @classmethod
    def _one_or_many(cls, given: Any) -> Any:
        return [given] if isinstance(given, dict) else given

    @model_validator(mode="after")
    def _one_use(self) -> Self:
        """Of a column that is declared twice nobody could say which counts."""
        encoded = self.categorical
        named = [*(one.column for one in self.date_columns), *(() if encoded is None else encoded.columns)]
        twice = next((name for name, times in Counter(named).items() if times > 1), None)
        if twice is not None:
            raise ValueError(f"{twice!r} is declared twice: name it once, under `categorical` or under `dates`")
        if encoded is not None and encoded.encoding == "hashed" and encoded.categories:
            raise ValueError("hashed categories are not listed: take out `categories`, or `encoding: hashed`")
        if self.indicators and self.missing == "refuse":
            raise ValueError(
                "`indicators` are for values that are filled: declare `missing`, such as `missing: median`"
            )
        return self

    @property
    def _figures(self) -> dict[str, tuple[float, float]]:
        return {column: (each.shift, each.scale) for column, each in self.figures.items()}


class TableConfig(TableSource):
    """A table that this party offers to runs."""

    id: str | None = None
    """Column that names the rows; `id` if left out, `"#row"` where all organisations have the same order."""
    label: str | None = None
    """The label column, which is no feature."""
    label_path: FilePath | None = None
    """A separate file with the labels and the ids of their rows."""
    standardise: bool = False
    """Bring each column to mean 0 and standard deviation 1, over all rows; see also `preprocess`."""
    preprocess: PreprocessConfig | None = None
    """Fill missing values, encode categories and scale, as the training rows of each run teach."""
    exclude: tuple[str, ...] = ()
    """Columns that are no features: remarks, or those that no row has a value of."""
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
    """Fewest common ids for which anyone learns which they are; also the shortest list that a coordinator may bring."""
    per_day: int = Field(default=10, ge=0)
    """Most alignments of one table by one coordinator within 24 hours."""


class RingPolicy(Section):
    """The ring of secure sums, as far as it protects this party; a spec cannot choose other values."""

    limit: float | None = Field(default=None, gt=0)
    """Largest magnitude that this party adds to a sum; of a spec with another `privacy.aggregation.limit` nothing is
    taken. The ring's own (2^16 with 64 bits, 2^10 with 32) if left out."""
    out_of_range: Literal["refuse", "clip"] = "refuse"
    """A value beyond it keeps its sum from opening for anybody, or is clipped to the limit."""


class PredictionPolicy(Section):
    """Which rows this party answers about when somebody else names them, how often, and for whom."""

    rows_per_day: int = Field(default=100_000, ge=0)
    """Most rows that one coordinator may ask for by id within 24 hours; whole tables are not counted."""
    rows_per_minute: int | None = Field(default=None, ge=1)
    """Most rows that one deployment answers about within a minute; any number if left out."""
    deployments: bool = True
    """Whether models may be deployed, so that a session stays open for them."""
    tables: tuple[str, ...] | None = None
    """Tables whose rows a deployed model may be asked about; all that are open to runs if left out."""
    rows: FilePath | None = None
    """File with the ids that a deployed model may be asked about, one on each line; all of the table if left out."""
    callers: tuple[str, ...] | None = None
    """For whom the coordinator may ask, by the names that it gives to its clients; for anybody if left out."""
    given: tuple[str, ...] = ()
    """Parties (perhaps this one) whose features a caller may bring along. A sum with such a block tells the caller the
    sum over the others, and the block's owner lets its model be asked at any point."""


class FeaturePolicy(Section):
    """What runs may learn of this party's rows under noise (`privacy.features`), and whether they must."""

    required: bool = False
    """Whether a run that would let values of the rows leave without noise is refused."""
    epsilon: float = Field(default=10.0, gt=0, lt=math.inf)
    """Largest ε of any one row of a table, over all runs; noise that is drawn once is paid for once."""
    delta: float = Field(default=1e-6, gt=0, lt=0.1)
    """δ at which releases are composed."""
    honest: int = Field(default=2, ge=1, le=1024)
    """Parties, this one among them, that are trusted to keep their noise to themselves, where sums are noised by all
    together; a run that relies on more is refused. Masks rely on two as well."""

    @property
    def terms(self) -> DatasetTerms:
        """The same, as the ledger takes it: a row that has changed is another record, and charged."""
        return DatasetTerms(self.epsilon, self.delta, changed="charge")


class Policy(Section):
    """What this party accepts. A run that asks for more is refused before it starts."""

    coordinators: tuple[str, ...]
    """Coordinators that may call, as their certificates name them."""
    algorithms: tuple[str, ...]
    """Algorithms that may run here, by name; code of others is not even imported."""
    epsilon_budget: float = Field(default=10.0, gt=0)
    """ε that all runs with local privacy together may cost one record; `.inf` allows runs without noise."""
    features: FeaturePolicy = FeaturePolicy()
    """Noise on this party's rows, and what it may cost over all runs."""
    aggregations: tuple[Literal["pairwise", "two_tree", "plain"], ...] = ("pairwise", "two_tree")
    """Ways of summing that hide this party's values; `plain` hides nothing."""
    aggregation: RingPolicy = RingPolicy()
    """The ring of secure sums."""
    minimum_parties: int = Field(default=3, ge=1, le=1024)
    """Fewest parties in a sum that this party adds to; of two, each knows the other's value from the sum."""
    minimum_rows: int = Field(default=30, ge=1)
    """Fewest rows of this party that a run trains on."""
    minimum_batch: int = Field(default=8, ge=1)
    """Fewest rows of this party that a value without noise of its own is made from."""
    minimum_evaluation: int = Field(default=20, ge=1)
    """Fewest rows that metrics are taken over."""
    tables: tuple[str, ...] | None = None
    """Tables that runs may read; all if left out."""
    views: dict[str, dict[str, Annotated[tuple[str, ...], Field(min_length=1)]]] = Field(default_factory=dict)
    """Of a table: sets of columns by name. A spec asks for one by `view`, and of such a table for nothing else."""
    free_columns: bool = False
    """Whether a spec may choose `columns` freely; two runs that differ by one column can give that column away."""
    exact_sums: dict[str, tuple[str, ...]] | None = None
    """Of an algorithm: tables whose sums it may see without noise of this party's own; all open ones if left out."""
    runs_per_view: int = Field(default=500, ge=1)
    """Most runs that one view of a table (or the whole of it) ever serves."""
    sums_per_row: Annotated[int, Field(ge=1)] | Literal["columns", "unbounded"] = "columns"
    """Most exact sums of one row under one view, over all runs. `columns`: of a linear block fewer than tell the span
    of its columns, of others any number; `unbounded`: runs warn instead."""
    differencing: Literal["refuse", "salt", "allow"] = "refuse"
    """What becomes of a run whose sums could be subtracted from those of an earlier one: refused, or made with other
    batches where that helps, or allowed."""
    mixing: Literal["refuse", "allow"] = "refuse"
    """What becomes of a run without noise of this party's own over rows that runs with a finite ε have used, or of one
    with noise over rows that have left without: together their ε is infinite."""
    model_imports: tuple[Annotated[str, Field(pattern=r"^[\w.]+:\w+$")], ...] = ()
    """`package.module:function` names that may be imported as models, or as a party's side of a problem."""
    changed_data: Literal["refuse", "restart"] = "refuse"
    """When a run is resumed on a table whose values have changed: refuse it, or let it begin anew."""
    coefficients: Sharing = "party"
    """What may leave of coefficients that a run has tuned: `nothing`, one number for the whole `party`, or those of
    all its `columns` by name."""
    correlations: Literal["all"] | tuple[str, ...] = ()
    """Columns whose correlations with all others, of this party and of others, a run may ask for. They leave masked;
    two other parties that put together what they get would know them."""
    sessions: int = Field(default=16, ge=1, le=1024)
    """Most sessions at once."""
    alignment: AlignmentPolicy = AlignmentPolicy()
    """Entity alignment."""
    predictions: PredictionPolicy = PredictionPolicy()
    """Questions about rows by id."""
    approval: Literal["none", "required"] = "none"
    """`required`: a spec is taken only once `parley approve` was run for its digest here."""
    peers: dict[str, Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]] = Field(default_factory=dict)
    """Pinned certificates of other parties: name → SHA-256 of the certificate (DER), in hex."""

    @model_validator(mode="before")
    @classmethod
    def _views_replace_columns(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("columns") is not None:
            raise ValueError(
                "`policy.columns` has given way to views: write `views: {TABLE: {NAME: [column, ...]}}` here, and "
                "`view: NAME` under this party in a spec"
            )
        return value

    def columns_of(self, table: str, view: str | None, columns: tuple[str, ...] | None) -> tuple[str, ...] | None:
        """The columns that a spec's choice means; None for all of them."""
        return columns if view is None else self.views[table][view]

    def most_sums(self, rank: int | None) -> int | None:
        """Most exact sums of a row of a view, where `rank` of them tell the span of its columns; None if unbounded."""
        if self.sums_per_row == "columns":
            return None if rank is None else rank - 1
        return None if self.sums_per_row == "unbounded" else self.sums_per_row

    @field_validator("algorithms")
    @classmethod
    def _known(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        known = installed_names()
        for name in value:
            if name not in known:
                hint = did_you_mean(name, known) or f": there are {', '.join(known)}"
                raise ValueError(f"{name!r} is no algorithm that is installed here{hint}")
        return value


class RayCertificates(Section):
    """What the nodes of a cluster know each other by; of the organisation's own, not the federation's."""

    certificate: FilePath
    """Of this machine, as PEM; it names the addresses of the node."""
    key: FilePath
    """Its key."""
    authority: FilePath
    """Who signs the certificates of all nodes."""


class ComputeConfig(Section):
    """Where many rows at once are worked on."""

    engine: Literal["ray"]
    """What runs there."""
    address: Annotated[str, Field(pattern=r"^(ray://)?(\[[0-9a-f:]+\]|[^\s:/\[\]]+):[0-9]{1,5}$")]
    """host:port of the cluster's head, of which this machine is a node; or `ray://host:port` of its client server."""
    shards: int = Field(default=16, ge=1, le=4096)
    """Parts that a table is cut into, each held by a process of the cluster; another number gives other bits."""
    minimum_rows: int = Field(default=20_000, ge=1)
    """A batch of fewer rows is worked on in the party itself."""
    token: FilePath | None = None
    """File with the token that every node asks for; needed unless the address is of this machine."""
    tls: RayCertificates | None = None
    """Certificates of the cluster; needed unless the address is of this machine."""

    @model_validator(mode="after")
    def _is_guarded(self) -> Self:
        if not 0 < self.host_and_port[1] < 65536:
            raise ValueError(f"`address` needs a port from 1 to 65535, not {self.host_and_port[1]}")
        if not self.is_here and not self.is_protected:
            raise ValueError(
                f"{self.host_and_port[0]} is another machine: give `token` (a file) and `tls` (certificate, key, "
                "authority), and start every node with them; without them only a cluster on this machine is used"
            )
        return self

    @property
    def host_and_port(self) -> tuple[str, int]:
        """Where the cluster answers."""
        host, _, port = self.address.removeprefix("ray://").rpartition(":")
        return host.strip("[]"), int(port)

    @property
    def is_here(self) -> bool:
        """Whether the cluster is on this machine alone, by its address."""
        return is_loopback(self.host_and_port[0])

    @property
    def is_protected(self) -> bool:
        """Whether nodes know each other, and what passes between them is encrypted."""
        return self.token is not None and self.tls is not None

    @property
    def environment(self) -> dict[str, str]:
        """The same for Ray, which takes it from there; it tells nobody of its use, and logs no error's own text."""
        found = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_IGNORE_UNHANDLED_ERRORS": "1"}
        if self.is_here:
            found["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # else Ray puts the machine's address for 127.0.0.1
        if self.token is not None:
            found |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(self.token)}
        if self.tls is not None:
            found |= {
                "RAY_USE_TLS": "1",
                "RAY_TLS_SERVER_CERT": str(self.tls.certificate),
                "RAY_TLS_SERVER_KEY": str(self.tls.key),
                "RAY_TLS_CA_CERT": str(self.tls.authority),
            }
        return found


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, by its name."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


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
    connect: str | None = None
    """host:port of the coordinator (or of `relay`), which this party dials in place of listening: everything that
    others send to it comes inside the connection that it keeps open."""
    relay: str | None = None
    """The relay at `connect`, as its certificate names it; the coordinator's own if left out."""
    identity: FilePath
    """Directory with the certificate, the key and the authority."""
    state: FilePath
    """Directory for checkpoints, models and the database."""
    database: str | None = None
    """SQLAlchemy URL; a SQLite file in `state` if left out."""
    coordinator: Coordinator | None = None
    """Whom to tell when this party comes up; with `connect`, whoever is there and whom `policy` names if left out."""
    tables: dict[str, TableConfig]
    """Tables by name."""
    policy: Policy
    """What this party accepts."""
    traces: TraceConfig | None = None
    """Where OpenTelemetry traces of this party's part go; nowhere if left out."""
    metrics_listen: str | None = None
    """host:port for Prometheus; plain HTTP on loopback, elsewhere TLS with a client certificate; none if left out."""
    threads: int = Field(default=1, ge=1, le=256)
    """Threads of torch."""
    memory: Annotated[str, Field(pattern=r"^[1-9][0-9]*(MB|GB)$")] | None = None
    """Such as `2GB`: tables of CSV and Parquet are sorted into files in `state` and mapped from there, within this much
    memory, and keep float32; without it they are held in memory as float64."""
    compute: ComputeConfig | None = None
    """A cluster of this organisation that works on many rows at once; the party itself if left out."""

    @model_validator(mode="before")
    @classmethod
    def _coordinator_at_connect(cls, value: Any) -> Any:
        """Who is at `connect` need not be written twice."""
        if isinstance(value, dict) and value.get("connect") and not (value.get("relay") or value.get("coordinator")):
            policy = value.get("policy")
            names = policy.get("coordinators") if isinstance(policy, dict) else None
            if isinstance(names, list | tuple) and len(names) == 1:
                return value | {"coordinator": {"name": names[0], "address": value["connect"]}}
        return value

    @model_validator(mode="after")
    def _listens_or_connects(self) -> Self:
        if self.connect is None and self.relay is not None:
            raise ValueError("`relay` names who is at `connect`: add `connect: host:port`, or take it out")
        if self.connect is not None and "listen" in self.model_fields_set:
            raise ValueError("`listen` and `connect` exclude each other: keep `connect` where nobody can dial in")
        if self.connect is not None and self.relay is None and self.coordinator is None:
            raise ValueError(
                "`policy.coordinators` names several: write which of them is at `connect`, as "
                "`coordinator: {name: ..., address: ...}`"
            )
        return self

    @property
    def relays(self) -> list[RelayPlace]:
        """The relays that this party knows: first the one that it dials, if it does, then its coordinator's."""
        found = []
        if self.connect is not None and self.relay is not None:
            found.append(RelayPlace("relay", self.relay, self.connect))
        if self.coordinator is not None:
            address = self.coordinator.address if self.connect is None or self.relay else self.connect
            found.append(RelayPlace("coordinator", self.coordinator.name, address))
        return found

    @model_validator(mode="after")
    def _opens_own_tables(self) -> Self:
        for name in self.policy.tables or ():
            if name not in self.tables:
                hint = did_you_mean(name, self.tables) or f": there are {', '.join(self.tables)}"
                raise ValueError(f"`policy.tables` opens {name!r}, which this party does not have{hint}")
        policy = self.policy
        exact = {table for tables in (policy.exact_sums or {}).values() for table in tables}
        for field, named in (("views", policy.views), ("exact_sums", exact)):
            for name in sorted(named):
                if name not in self.tables:
                    hint = did_you_mean(name, self.tables) or f": there are {', '.join(self.tables)}"
                    raise ValueError(f"`policy.{field}` names {name!r}, which this party does not have{hint}")
        return self

    @property
    def workspace(self) -> Workspace | None:
        """Where and how rows are kept outside memory; None if they are held in it."""
        if self.memory is None:
            return None
        return Workspace(self.state, int(self.memory[:-2]) * {"MB": 10**6, "GB": 10**9}[self.memory[-2:]])

    @property
    def database_url(self) -> str:
        """`database`, with its default filled in."""
        return self.database or f"sqlite:///{self.state / 'party.db'}"

    @property
    def has_database(self) -> bool:
        """Whether there is a database already: the file is made by the first run that charges the ledger."""
        return self.database is not None or (self.state / "party.db").exists()
