"""Figures for a monitoring system (Prometheus): counts, sizes and times.

Labels are names that the configuration, the protos and the catalogues fix: methods, reasons, parties, algorithms,
states. No value here is computed from anyone's records; `tests/integration/test_web.py` checks it.
"""

import ipaddress
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    start_http_server,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

disable_created_metrics()  # type: ignore[no-untyped-call]
REGISTRY = CollectorRegistry()
ProcessCollector(registry=REGISTRY)


class Tally(Collector):
    """A counter for what happens in every message: the library's own costs as much as a small message does."""

    def __init__(self, name: str, documentation: str, labels: Sequence[str]) -> None:
        self._name, self._documentation, self._labels = name, documentation, labels
        self.counts: defaultdict[tuple[str, ...], int] = defaultdict(int)
        """By the labels' values. One thread adds to an entry."""
        REGISTRY.register(self)

    def collect(self) -> Iterator[CounterMetricFamily]:
        """What has been counted."""
        family = CounterMetricFamily(self._name, self._documentation, labels=self._labels)
        for labels, count in list(self.counts.items()):
            family.add_metric(labels, count)
        yield family


CALLS = Counter("parley_calls", "Calls that this service took.", ["method"], registry=REGISTRY)
REFUSALS = Counter(
    "parley_refusals", "Calls that this service refused, by named reason.", ["method", "reason"], registry=REGISTRY
)
SERVED_BYTES = Tally("parley_served_bytes", "Bytes of messages of the calls it took.", ["method", "direction"])
EDGE_BYTES = Tally(
    "parley_edge_bytes", "Bytes of training rounds, by the party at the other end.", ["party", "direction"]
)
ROUNDS = Tally("parley_rounds", "Training and prediction rounds.", ["algorithm"])
STEP_SECONDS = Histogram(
    "parley_step_seconds",
    "Time from a round's instruction to its answer.",
    ["algorithm"],
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
    registry=REGISTRY,
)
SESSIONS_OPENED = Counter("parley_sessions_opened", "Sessions opened.", registry=REGISTRY)
SESSIONS = Gauge("parley_sessions", "Sessions that are open now.", registry=REGISTRY)

SENT, RECEIVED = "sent", "received"

_step_seconds = cache(STEP_SECONDS.labels)


def note_round(algorithm: str, seconds: float) -> None:
    """A round has been answered."""
    ROUNDS.counts[algorithm,] += 1
    _step_seconds(algorithm).observe(seconds)


class MetricsAddressInvalid(ValueError):
    """The address of the metrics cannot be listened on."""


class RunStates(Collector):
    """Runs by state, read when someone asks."""

    def __init__(self, count: Callable[[], Mapping[str, int]]) -> None:
        self._count = count

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """One gauge for each state."""
        family = GaugeMetricFamily("parley_runs", "Runs by state.", labels=["state"])
        for state, number in sorted(self._count().items()):
            family.add_metric([state], number)
        yield family

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Name the family without reading the database."""
        return [GaugeMetricFamily("parley_runs", "Runs by state.", labels=["state"])]


def exposition() -> tuple[bytes, str]:
    """Everything, as Prometheus reads it, and its content type."""
    return generate_latest(REGISTRY), CONTENT_TYPE_LATEST


def edge_totals(party: str) -> tuple[int, int]:
    """Bytes sent to and received from a party since this process began."""
    return EDGE_BYTES.counts.get((party, SENT), 0), EDGE_BYTES.counts.get((party, RECEIVED), 0)


def listen(address: str, identity: Path) -> int:
    """Serve the figures at host:port; returns the port.

    On this machine's own loopback in plain HTTP; anywhere else over TLS, to holders of a certificate of the federation.
    """
    host, _, port = address.rpartition(":")
    if not port.isdigit() or not host:
        raise MetricsAddressInvalid(f"metrics_listen must be host:port, such as 127.0.0.1:9464, not {address!r}")
    try:
        if _is_loopback(host):
            server, _ = start_http_server(int(port), host, REGISTRY)
        else:
            server, _ = start_http_server(
                int(port),
                host,
                REGISTRY,
                certfile=str(identity / "certificate.pem"),
                keyfile=str(identity / "key.pem"),
                client_cafile=str(identity / "ca.pem"),
                client_auth_required=True,
            )
    except OSError as error:
        raise MetricsAddressInvalid(
            f"cannot serve metrics at {address} ({error.strerror}): choose another address"
        ) from None
    return int(server.server_port)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
