"""A coordinator's configuration, read once at the start."""

import ipaddress
import math
from typing import Annotated, Any, Literal, Self, get_args
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from parley.privacy.dataset_ledger import DatasetTerms
from parley.privacy.evaluations import EvaluationPolicy
from parley.services.coordinator.rhythms import parse_every
from parley.services.wire.configuration import FilePath
from parley.services.wire.relay_line import RelayPlace
from parley.services.wire.table_sources import TableSource
from parley.services.wire.traces import TraceConfig
from parley.spec.section import Section

Permission = Literal["start", "watch", "cancel", "predict", "deploy", "ledger", "administer"]
Permissions = tuple[Permission, ...]
ALL_PERMISSIONS: Permissions = get_args(Permission)


class LabelBudget(Section):
    """What all runs together may spend on any one label."""

    epsilon: float = Field(default=10.0, gt=0, lt=math.inf)
    """Largest ε of one label over all runs; noise that is drawn once is paid for once."""
    delta: float = Field(default=1e-6, ge=0, lt=0.1)
    """δ at which releases are composed; 0 adds up pure ε only."""


class LabelConfig(TableSource):
    """A table of labels that runs may train on."""

    id: str | None = None
    """Column that names the rows; `id` if left out."""
    column: str = "label"
    """Column with the labels."""
    unlabelled: Literal["refuse", "drop"] = "refuse"
    """Rows without a label: refused, or as if they were not there, so that an alignment leaves them out."""
    classes: list[str] | None = Field(default=None, min_length=2)
    """The classes in their order, where it shall not be the alphabet's: of two, the second one is the positive one,
    whose probability is predicted, and which precision, recall and average precision are about."""
    unit: float = Field(default=1.0, gt=0, allow_inf_nan=False)
    """Labels that are numbers are divided by this when they are read: 100000 makes prices hundred thousands, in all
    figures and predictions. For those too large for a sum (65536 if a run says nothing of its `limit`)."""
    budget: LabelBudget = LabelBudget()
    """What all runs together may spend on any one label; a run that would pass it is refused."""
    changed_labels: Literal["refuse", "charge"] = "refuse"
    """A label that has changed since it was released: refuse the run, or charge the record a second time."""
    unprotected: Literal["refuse", "allow"] = "allow"
    """Whether runs may say `labels: {mechanism: off}`; the data set's account tells it ever after."""
    minimum_evaluation: int = Field(default=20, ge=1)
    """Fewest rows that a figure on true labels is over; two test sets of runs differ by as many rows, or not at all,
    and figures over several of them together tell of half as many, at least."""
    test_sets_per_row: int = Field(default=100, ge=1)
    """Most different test sets, over all runs, that one row may be in."""
    evaluations_per_row: int = Field(default=100_000, ge=1)
    """Most evaluations, over all runs, that one row may be in."""
    evaluation_epsilon: float | None = Field(default=None, gt=0)
    """ε of each evaluation: accuracy leaves with noise, and no other figure; exact figures leave if left out."""
    evaluation_budget: float = Field(default=10.0, gt=0)
    """Most ε that evaluations may spend on one row's label, over all runs (evaluation_epsilon)."""

    @field_validator("classes", mode="before")
    @classmethod
    def _spelled(cls, given: Any) -> Any:
        """Names as texts; what YAML has made a truth value is asked for again."""
        if not isinstance(given, list):
            return given
        if any(isinstance(one, bool) for one in given):
            raise ValueError("YAML reads yes, no, on and off as truth values: put them in quotes")
        return [str(one) if isinstance(one, int) else one for one in given]

    @property
    def terms(self) -> DatasetTerms:
        """The same, as the ledger takes it."""
        return DatasetTerms(self.budget.epsilon, self.budget.delta, self.changed_labels, self.unprotected)

    @property
    def evaluation(self) -> EvaluationPolicy:
        """The same for `parley.privacy.evaluations`."""
        return EvaluationPolicy(
            self.minimum_evaluation,
            self.test_sets_per_row,
            self.evaluations_per_row,
            self.evaluation_epsilon,
            self.evaluation_budget,
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class RelayAddress(Section):
    """A relay that runs by itself."""

    name: str
    """The relay, as its certificate names it."""
    address: str
    """host:port."""


class PartyAddress(Section):
    """How a party is reached: one of these three."""

    address: str | None = None
    """host:port where it is dialled."""
    connects: bool = False
    """Whether it dials this coordinator, and takes no connections itself."""
    relay: RelayAddress | None = None
    """The relay that it dials."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if sum((self.address is not None, self.connects, self.relay is not None)) != 1:
            raise ValueError(
                "a party is reached in one way: `address: host:port` if it listens, `connects: true` if it dials this "
                "coordinator, `relay: {name: ..., address: ...}` if it dials a relay"
            )
        return self


class ProviderConfig(Section):
    """An OpenID Connect provider whose users may use the web page."""

    issuer: str
    """Its address as it calls itself, such as https://login.example.org/realms/bank; TLS, unless on this machine."""
    client_id: str
    """What the provider calls this page; tokens must be issued for it."""
    client_secret_file: FilePath | None = None
    """File with the secret, if the provider gave one."""
    url: str | None = None
    """The page's address as browsers see it, if a proxy stands before it; from the request if left out."""
    user_claim: str = "email"
    """The claim that names a user; an `email` must be verified by the provider."""
    group_claim: str = "groups"
    """The claim that lists a user's groups."""
    users: dict[str, Permissions] = Field(default_factory=dict)
    """What single users may do, by name."""
    groups: dict[str, Permissions] = Field(default_factory=dict)
    """What everybody of a group may do, beside that."""

    @model_validator(mode="after")
    def _over_tls(self) -> Self:
        parts = urlsplit(self.issuer)
        if parts.scheme != "https" and not (parts.scheme == "http" and _is_loopback(parts.hostname or "")):
            raise ValueError("`issuer` must begin with https://: whoever changes what it says could log in as anybody")
        return self


class WebConfig(Section):
    """The web page."""

    listen: str = "127.0.0.1:0"
    """host:port to serve on; port 0 takes a free one."""
    token_file: FilePath | None = None
    """File with the token that a browser must show; made in `state` if left out."""
    insecure_http: bool = False
    """Serve plain HTTP instead of HTTPS with the coordinator's certificate, for a proxy on the same machine."""
    permissions: Permissions = ALL_PERMISSIONS
    """What whoever has the token may do; all that the page offers if left out."""
    provider: ProviderConfig | None = None
    """The OpenID Connect provider whose users may log in; none if left out."""

    @model_validator(mode="after")
    def _clear_text_stays_here(self) -> Self:
        host = self.listen.rpartition(":")[0].strip("[]")
        if self.insecure_http and not _is_loopback(host):
            raise ValueError(
                "`insecure_http` sends token and page in the clear: `listen` on 127.0.0.1 or [::1], and let a proxy on "
                "this machine speak TLS"
            )
        return self


class MlflowConfig(Section):
    """An MLflow server, or a folder that MLflow keeps."""

    uri: str
    """Where runs are kept, as MLflow calls it, such as https://mlflow.example.org or sqlite:////srv/mlflow.db."""
    experiment: str = "parley"
    """The experiment that runs are filed under; made if there is none."""
    artefacts: str | None = None
    """Where an experiment that is made keeps its artefacts; as MLflow chooses if left out."""


class TrackingConfig(Section):
    """Where runs are shown beside those of other programs."""

    mlflow: MlflowConfig | None = None
    """MLflow; not at all if left out."""
    tensorboard: FilePath | None = None
    """Folder of event files for TensorBoard, one folder in it for each run; none if left out."""


class ScheduleConfig(Section):
    """A run that is started again and again, each time on the tables as they are then."""

    every: str
    """When, in UTC: `day at 02:00`, `monday at 02:00`, `hour`, `30 minutes`."""
    spec: FilePath
    """The spec's file; read anew each time."""
    priority: int = Field(default=0, ge=-100, le=100)
    """Of runs that wait for their turn, the highest goes first."""

    @model_validator(mode="after")
    def _readable(self) -> Self:
        parse_every(self.every)
        return self


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
    key_command: tuple[str, ...] | None = Field(default=None, min_length=1)
    """Command that prints the key of label noise, 64 hexadecimal digits; a file in `state` if left out."""
    standby: bool = False
    """Wait while another coordinator serves the same `database` of PostgreSQL, and take over within seconds when it
    ends; write it at both, with the same `key_command`, and a `state` of its own at each."""
    parties: dict[str, PartyAddress]
    """The address book: parties by name."""
    labels: dict[str, LabelConfig]
    """Label tables by name."""
    problem_imports: tuple[Annotated[str, Field(pattern=r"^[\w.]+:\w+$")], ...] = ()
    """`package.module:Class` names that runs may import as the label holder's side of a problem; needs torch here."""
    clients: dict[str, Permissions] = Field(default_factory=dict)
    """What each client may do, by the name in its certificate; a client that is not named may do nothing."""
    runs: int = Field(default=16, ge=1, le=1024)
    """Most runs at once; further ones wait for their turn."""
    queue: int = Field(default=100, ge=0, le=10_000)
    """Most runs that wait; further ones are refused."""
    runs_per_client: int | None = Field(default=None, ge=1)
    """Most runs of one client at once; its further ones wait. No limit of its own if left out."""
    queue_per_client: int | None = Field(default=None, ge=0)
    """Most runs of one client that wait; no limit of its own if left out."""
    schedules: dict[str, ScheduleConfig] = Field(default_factory=dict)
    """Runs that are started by the clock, by name."""
    retention_days: float | None = Field(default=None, gt=0, le=366_000)
    """Runs that ended longer ago are forgotten, as `parley run prune` would; kept for ever if left out."""
    web: WebConfig | None = None
    """The web page; none if left out."""
    traces: TraceConfig | None = None
    """Where OpenTelemetry traces of runs go; nowhere if left out."""
    tracking: TrackingConfig | None = None
    """Where runs are shown beside those of other programs; nowhere if left out."""

    @model_validator(mode="after")
    def _can_stand_by(self) -> Self:
        if not self.standby:
            return self
        if self.database is None or not self.database.startswith("postgresql"):
            raise ValueError("`standby` needs a `database` of PostgreSQL that both coordinators reach")
        if self.key_command is None:
            raise ValueError(
                "`standby` needs `key_command`: both coordinators must draw label noise under the same key, and a "
                "file in `state` is known to one of them only"
            )
        return self

    @property
    def addresses(self) -> dict[str, str]:
        """Where each party is dialled: host:port, or the relay that it is behind."""
        found = {}
        for name, party in self.parties.items():
            relay = RelayPlace("coordinator", self.name)
            if party.relay is not None:
                relay = RelayPlace("relay", party.relay.name, party.relay.address)
            found[name] = party.address or str(relay)
        return found

    @property
    def database_url(self) -> str:
        """Where runs and ledgers are kept."""
        return self.database or f"sqlite:///{self.state / 'coordinator.db'}"
