"""What `parley doctor --config` looks at: a service's configuration before it starts."""

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from parley.configurations import is_coordinators, is_relays
from parley.doctor import Check, broken, certificate, from_error, noticed, ok, port, reaches, warning, writable
from parley.doctor_floors import explained, weaknesses
from parley.services.wire.configuration import ConfigInvalid, load_config
from parley.services.wire.table_sources import TableSource
from parley.tables.errors import TableError

if TYPE_CHECKING:
    from parley.services.coordinator.config import CoordinatorConfig
    from parley.services.party.config import PartyConfig


PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
"""Environment variables that name a proxy, in the order in which gRPC looks at them."""


def configuration(path: Path) -> Iterator[Check]:
    """Check a party's, a coordinator's or a relay's configuration; which of them it is, its fields tell."""
    examine = _relay if is_relays(path) else _coordinator if is_coordinators(path) else _party
    yield from examine(path)


def _mistakes(invalid: ConfigInvalid) -> Iterator[Check]:
    for mistake in invalid.mistakes:
        yield from_error("configuration", ValueError(mistake))


def _party(path: Path) -> Iterator[Check]:
    from parley.services.party.config import PartyConfig

    try:
        config = load_config(path, PartyConfig)
    except ConfigInvalid as invalid:
        yield from _mistakes(invalid)
        return
    yield ok("configuration", f"party {config.name}, {len(config.tables)} tables")
    yield from _service(config, "party")
    if config.metrics_listen is not None:
        yield port("metrics port", config.metrics_listen)
    for name in config.tables:
        yield _table(config, name)
    yield from _policy(config)
    if config.connect is not None:
        yield from _outbound(config)
    if config.coordinator is not None and config.coordinator.address != config.connect:
        yield _reachable(f"coordinator {config.coordinator.name}", config.coordinator.address)


def _outbound(config: "PartyConfig") -> Iterator[Check]:
    """What a party that takes no connections needs: a way out, and a short path for its own socket."""
    from parley.services.wire.routes import SERVICE_SOCKET, SOCKETS
    from parley.services.wire.tunnels import SocketPathTooLong, socket_address

    place = config.relays[0]
    subject = f"{place.role} {place.name}, dialled in place of listening"
    proxy = next((name for name in PROXIES if os.environ.get(name)), None)
    problem = reaches(place.address)
    if problem and proxy is None:
        remedy = "start it, correct `connect`, or open the firewall outwards (https_proxy names a proxy that leads out)"
        yield warning(subject, f"nothing answers at {place.address} ({problem})", remedy)
    else:
        yield ok(subject, f"dialled through the proxy of {proxy}" if problem else f"answers at {place.address}")
    try:
        socket_address(config.state / SOCKETS / SERVICE_SOCKET)
    except SocketPathTooLong as too_long:
        yield from_error("state", too_long)


def _coordinator(path: Path) -> Iterator[Check]:
    from parley.services.coordinator.config import CoordinatorConfig

    try:
        config = load_config(path, CoordinatorConfig)
    except ConfigInvalid as invalid:
        yield from _mistakes(invalid)
        return
    yield ok("configuration", f"coordinator {config.name}, {len(config.parties)} parties, {len(config.labels)} labels")
    yield from _service(config, "coordinator")
    if config.web is not None:
        yield port("web port", config.web.listen)
    for name, labels in config.labels.items():
        yield _labels(name, labels, labels.column, labels.id, unlabelled=labels.unlabelled, classes=labels.classes)
    for name, party in config.parties.items():
        if party.connects:
            yield ok(f"party {name}", "dials this coordinator: nothing to open, it is there once it has started")
        elif party.relay is not None:
            yield _reachable(f"relay {party.relay.name} of party {name}", party.relay.address)
        else:
            yield _reachable(f"party {name}", party.address or "")


def _relay(path: Path) -> Iterator[Check]:
    from parley.services.relay.config import RelayConfig

    try:
        config = load_config(path, RelayConfig)
    except ConfigInvalid as invalid:
        yield from _mistakes(invalid)
        return
    served = "every party of the authority" if config.parties is None else " and ".join(config.parties)
    yield ok("configuration", f"relay {config.name}, for {served}")
    yield certificate("certificate", config.identity, "relay", config.name)
    yield port("port", config.listen)


def _service(config: "PartyConfig | CoordinatorConfig", role: str) -> Iterator[Check]:
    yield certificate("certificate", config.identity, role, config.name)
    if getattr(config, "connect", None) is None:
        yield port("port", config.listen)
    yield writable("state", config.state)
    yield _database(config.database)


def _database(url: str | None) -> Check:
    import sqlalchemy as sa

    if url is None:
        return ok("database", "a SQLite file in the state folder")
    try:
        shown = sa.make_url(url).render_as_string(hide_password=True)
        engine = sa.create_engine(url)
        engine.connect().close()
        engine.dispose()
    except (sa.exc.SQLAlchemyError, ModuleNotFoundError) as error:
        cause = " ".join(str(getattr(error, "orig", None) or type(error).__name__).split())[:200]
        return broken("database", f"cannot be opened ({cause})", "correct `database`, and start its server")
    return ok("database", shown)


def _table(config: "PartyConfig", name: str) -> Check:
    from parley.services.party.tables import TableStore
    from parley.tables.preprocessing import apply, fit

    subject, store = f"table {name}", TableStore(config.tables, config.workspace)
    try:
        offer = store.examine(name)
        if offer.notice:
            return noticed(subject, offer)
        declared, table = store.declared(name), store.load(name, dense=False)
        columns = len(table.columns) + len(table.texts)
        if declared is not None:  # a run fits on its training rows; all rows show what can go wrong
            table = apply(fit(declared, table, np.arange(len(table))), table)
    except TableError as error:
        return from_error(subject, error)
    entry = config.tables[name]
    if entry.label is not None:
        labels = _labels(subject, entry, entry.label, entry.id, entry.label_path)
        if labels.state == "broken":
            return labels
    encoded = f", {len(table.columns)} once preprocessed" if declared is not None else ""
    return ok(subject, f"{len(table)} rows, {columns} columns{encoded}; ids sha256 {_digest(table)}")


def _digest(table: Any) -> str:
    from parley.tables.loading import Table, id_digest

    return (table.row_digest if isinstance(table, Table) else id_digest(table.ids))[:16]


def _labels(
    name: str, source: TableSource, column: str, id_column: str | None, path: Path | None = None, **how: Any
) -> Check:
    from parley.tables.loading import load_labels

    subject = name if name.startswith("table ") else f"labels {name}"
    try:
        labels = load_labels(
            path or source.source, column, None if path else source.format, id_column, delimiter=source.delimiter, **how
        )
    except TableError as error:
        return from_error(subject, error)
    many = len(labels.classes) > max(100, len(labels) // 2)
    kinds = "numbers" if many else f"{len(labels.classes)} classes"
    return ok(subject, f"{len(labels)} labels, {kinds}; ids sha256 {_digest(labels)}")


def _policy(config: "PartyConfig") -> Iterator[Check]:
    policy, found = config.policy, 0
    if config.coordinator is not None and config.coordinator.name not in policy.coordinators:
        found += 1
        remedy = "add it to `policy.coordinators`, or correct `coordinator`"
        yield broken("policy", f"it refuses {config.coordinator.name}, to whom this party announces itself", remedy)
    if "plain" in policy.aggregations:
        found += 1
        yield warning("policy", "`plain` sums hide nothing from the coordinator", "take it out, unless that is meant")
    if policy.minimum_parties < 3:
        found += 1
        remedy = "set `policy.minimum_parties: 3` where there are three parties"
        yield warning("policy", "in a sum of two parties, each can tell the other's share from the result", remedy)
    if math.isinf(policy.epsilon_budget):
        found += 1
        yield warning("policy", "epsilon_budget is infinite: runs without noise are accepted", "set a budget")
    for subject, sentence, remedy in weaknesses(config):
        found += 1
        yield warning(subject, sentence, remedy)
    yield from (ok("floors", sentence) for sentence in explained(config))
    if not found:
        yield ok("policy", f"accepts {', '.join(policy.algorithms)}; sums {', '.join(policy.aggregations)}")


def _reachable(subject: str, address: str) -> Check:
    problem = reaches(address)
    if problem:
        return warning(subject, f"nothing answers at {address} ({problem})", "start it, or correct the address")
    return ok(subject, f"answers at {address}")
