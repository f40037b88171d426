"""Peers side by side: the same exchange through Parley, bare gRPC, Flower and NVIDIA FLARE.

Four clients; a round sends an array of float32 to every client, each sends one of the same size back, and the server
averages. All on one machine, every system as its own processes. Every round of measurements visits every size and
system, so that a noisy machine is noisy for all; ratios are medians. The slow workflows, which take seconds for a round
of any size, are measured once for each size.

And a vertical logistic regression on scikit-learn's breast cancer data, halves of the columns at two parties, against
FATE: steps per second of gradient descent with batches of 256.

Flower, FLARE and FATE live in virtualenvs of their own (`make peers`); where one is absent its rows are left out.
What is and is not like for like is said beside each system in `SYSTEMS` and printed with the rows.
"""

import json
import os
import signal
import socket
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from parley.benchmarks.echo import Hub, Measurement, Transport
from parley.benchmarks.null_federation import Protection, federation, machine_rows, null_spec
from parley.benchmarks.rows import row_of
from parley.client import Federation
from parley.local import LocalFederation
from parley.splitting import split_dataset

NAMES = tuple(f"party-{number}" for number in range(4))
REPEATS = 3
SIZES = {"1 KB": 1 << 10, "1 MB": 1 << 20, "10 MB": 10 << 20}
ROUNDS = {"1 KB": 1000, "1 MB": 40, "10 MB": 10}
SLOW_ROUNDS = 3
BARE, BIDI = "bare gRPC, mTLS", "Flower gRPC-bidi"
DEFAULT_FOLDER = Path("out/peers")


@dataclass(frozen=True)
class Peer:
    """A system in a virtualenv of its own."""

    virtualenv: str
    program: str
    ports: int
    """How many free ports its program wants."""
    slow: bool = False


PEERS = {
    "CellNet": Peer("nvflare", "nvflare_cellnet.py", 1),
    BIDI: Peer("flower", "flower_bidi.py", 1),
    "FLARE simulator": Peer("nvflare", "nvflare_simulator.py", 0, slow=True),
    "Flower SuperLink": Peer("flower", "flower_superlink.py", 1 + len(NAMES), slow=True),
}
FATE = Peer("fate", "fate_lr.py", 0, slow=True)
HALVES = ("guest", "host")
VERTICAL, VERTICAL_STEPS = "vertical logistic regression", 1000
SYSTEMS = {
    "Parley, plain": "services as shipped with an averaging algorithm: mTLS, sessions, gates, typed tensors, registry",
    "Parley, pairwise": "the same, and no client's array is seen: twice the bytes up, masks from a stream cipher",
    BARE: "bytes over one bidirectional stream for each client, averaged with numpy; no checks, no sessions",
    "bare gRPC": "the same without TLS",
    "CellNet": "FLARE's messaging layer alone, gRPC driver, bytes; no TLS, no job",
    BIDI: "start_server and start_client, FedAvg; no TLS",
    "FLARE simulator": "FLARE's FedAvg job with its client interface; no TLS, one machine only",
    "Flower SuperLink": "SuperLink, SuperNodes and an app with their defaults: a process for each message; no TLS",
    "FATE": "the regression alone: Paillier encryption, an arbiter that decrypts gradients; no TLS, FATE's launcher",
}


class PeerFailed(RuntimeError):
    """A peer's program ended without a figure."""


def run(sizes: Sequence[str] = tuple(SIZES), repeats: int = REPEATS) -> list[dict[str, Any]]:
    """Measure every system that is there and return rows of case, metric, value, unit, baseline and ratio."""
    before = machine_rows()
    found = installed(*PEERS.values(), FATE)
    there = {name: peer for name, peer in PEERS.items() if peer in found}
    for name, likeness in SYSTEMS.items():
        print(f"{name}: {likeness}")
    figures = _measure(there, sizes, repeats)
    if sizes and FATE in found:
        figures |= _measure_vertical(repeats)
    return [*before, *speed_rows(figures), *machine_rows()[1:]]


def _measure_vertical(repeats: int) -> dict[tuple[str, str], list[float]]:
    with tempfile.TemporaryDirectory() as folder:
        scratch, data = Path(folder), Path(folder) / "data"
        split_dataset("breast_cancer", HALVES, data, standardise=True)
        tables = {name: {"train": {"path": data / f"{name}.parquet"}} for name in HALVES}
        local = LocalFederation(scratch, tables, {"train": {"path": data / "labels.parquet"}})
        with local, local.connect() as client:
            ours = [_regression(client) for _ in range(repeats)]
    return {(VERTICAL, "Parley, pairwise"): ours, (VERTICAL, "FATE"): [_speed("FATE", FATE, [])]}


def _regression(client: Federation) -> float:
    settings = {
        "algorithm": "bambi",
        "loss": "logistic",
        "model": {"kind": "identity"},
        "regularisation": 5e-4,
        "upper": {"steps": 0},
        "lower": {"solver": "sgd", "batch": 256, "warmup_steps": VERTICAL_STEPS, "optimiser": {"step": 0.3}},
    }
    content = {
        "name": "regression",
        "parties": list(HALVES),
        "split": {"lower": 0.8, "upper": "lower", "test": 0.2},
        "train": settings,
        "privacy": {"labels": {"mechanism": "off"}},
        "checkpoint_every": 0,
    }
    metrics = client.start(yaml.safe_dump(content)).result()
    print(f"{VERTICAL}, Parley, pairwise: {metrics['test accuracy']:.3f} of held-out rows", flush=True)
    return metrics["rounds"] / metrics["seconds"]


def _measure(there: Mapping[str, Peer], sizes: Sequence[str], repeats: int) -> dict[tuple[str, str], list[float]]:
    figures: dict[tuple[str, str], list[float]] = {}
    if not sizes:
        return figures
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        local = federation(Path(scratch), NAMES, rows=64)
        party, coordinator = "parley.benchmarks.peers.averaging_party", "parley.benchmarks.peers.averaging_coordinator"
        local.modules = {**dict.fromkeys(NAMES, party), "coordinator": coordinator}
        stack.enter_context(local)
        client = stack.enter_context(local.connect())
        hub = stack.enter_context(Hub(NAMES, local.identity("coordinator").parent))
        for repeat in range(repeats):
            for size in sizes:
                for name, measure in _systems(client, hub, there, size, repeat).items():
                    figures.setdefault((size, name), []).append(measure())
                    print(f"{size}, {name}: {figures[size, name][-1]:.3g} rounds per second", flush=True)
    return figures


def _systems(
    client: Federation, hub: Hub, there: Mapping[str, Peer], size: str, repeat: int
) -> dict[str, Callable[[], float]]:
    systems: dict[str, Callable[[], float]] = {
        "Parley, plain": partial(_parley, client, "plain", size),
        "Parley, pairwise": partial(_parley, client, "pairwise", size),
        BARE: partial(_bare, hub, "grpc+mtls", size),
        "bare gRPC": partial(_bare, hub, "grpc", size),
    }
    return systems | {
        name: partial(_peer, name, peer, size) for name, peer in there.items() if not (peer.slow and repeat)
    }


def _parley(client: Federation, aggregation: str, size: str) -> float:
    spec = null_spec(NAMES, Protection(aggregation), steps=ROUNDS[size], batch=SIZES[size] // 4)
    metrics = client.start(spec).result()
    return metrics["rounds"] / metrics["seconds"]


def _bare(hub: Hub, transport: Transport, size: str) -> float:
    addresses = hub.addresses(transport, len(NAMES))
    return 1 / hub.seconds(Measurement(transport, addresses, SIZES[size], SIZES[size], ROUNDS[size], average=True))


def _peer(name: str, peer: Peer, size: str) -> float:
    rounds = SLOW_ROUNDS if peer.slow else ROUNDS[size]
    options = ["--bytes", str(SIZES[size]), "--rounds", str(rounds), "--clients", str(len(NAMES))]
    ports = _free_ports(peer.ports)
    if len(ports) == 1:
        options += ["--address", f"127.0.0.1:{ports[0]}"]
    elif ports:
        options += ["--ports", *ports]
    return _speed(name, peer, options)


def _speed(name: str, peer: Peer, options: Sequence[str]) -> float:
    return float(figures_of(name, peer, options)["rounds_per_second"])


def figures_of(name: str, peer: Peer, options: Sequence[str]) -> dict[str, Any]:
    """What a peer's program prints: rounds per second first. Processes that it leaves behind are ended.

    Raises:
        PeerFailed: it ended without a figure.
    """
    command = [str(_python(peer)), str(Path(__file__).with_name(peer.program)), *options]
    with (
        tempfile.TemporaryDirectory() as scratch,
        tempfile.TemporaryFile("w+") as output,  # a pipe would not end before the last process that was left behind
        tempfile.TemporaryFile("w+") as errors,
    ):
        with subprocess.Popen(command, stdout=output, stderr=errors, cwd=scratch, start_new_session=True) as process:
            try:
                process.wait()
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        output.seek(0)
        errors.seek(0)
        told, complaints = output.read(), errors.read()
    figures = [line for line in told.splitlines() if line.startswith('{"rounds_per_second"')]
    if not figures:
        raise PeerFailed(f"{name} ended without a figure: {(complaints or told)[-2000:]}")
    printed: dict[str, Any] = json.loads(figures[-1])
    return printed


def installed(*peers: Peer) -> list[Peer]:
    """Those whose virtualenv is there; of the others the reader is told."""
    found = [peer for peer in peers if _python(peer).exists()]
    for virtualenv in sorted({peer.virtualenv for peer in peers if peer not in found}):
        print(f"{virtualenv} is not in {_folder()}: its rows are left out; `make peers` installs it.")
    return found


def _free_ports(count: int) -> list[str]:
    with ExitStack() as stack:  # all are held until the last is known, so that none is given twice
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [str(one.getsockname()[1]) for one in sockets]


def _folder() -> Path:
    return Path(os.environ.get("PARLEY_PEERS", DEFAULT_FOLDER)).absolute()


def _python(peer: Peer) -> Path:
    return _folder() / peer.virtualenv / "bin" / "python"


def speed_rows(figures: Mapping[tuple[str, str], Sequence[float]]) -> list[dict[str, Any]]:
    """Rounds per second of each system, and ours against each of the others."""
    rows = []
    for (size, name), found in figures.items():
        rows.append(row_of(f"{size}, {name}", "rounds", statistics.median(found), "1/s"))
    for (size, ours), found in figures.items():
        if not ours.startswith("Parley"):
            continue
        for (other_size, other), others in figures.items():
            if other_size == size and not other.startswith("Parley"):
                # A slow workflow was measured once: every one of our figures is held against that.
                beside = [others[min(index, len(others) - 1)] for index in range(len(found))]
                ratio = statistics.median(one / two for one, two in zip(found, beside, strict=True))
                rows.append(row_of(f"{size}, {ours}", "rounds", statistics.median(found), "1/s", other, ratio))
    return rows


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Rounds per second of every system, one group of bars for each size."""
    import matplotlib.pyplot as plt

    found = {row["case"]: row["value"] for row in rows if row["baseline"] is None}
    sizes = [size for size in (*SIZES, VERTICAL) if any(case.startswith(f"{size}, ") for case in found)]
    figure, panels = plt.subplots(1, len(sizes), figsize=(4 * len(sizes), 4), layout="constrained", squeeze=False)
    for axes, size in zip(panels[0], sizes, strict=True):
        names = [name for name in SYSTEMS if f"{size}, {name}" in found]
        colours = ["#4472a8" if name.startswith("Parley") else "#aaaaaa" for name in names]
        bars = axes.barh(names, [found[f"{size}, {name}"] for name in names], color=colours)
        axes.bar_label(bars, fmt=lambda value: f"{value:,.0f}" if value >= 100 else f"{value:.2g}", padding=3)
        axes.set(xscale="log", title=size, xlabel="rounds per second")
        axes.set_xlim(right=8 * axes.get_xlim()[1])  # room for the labels
        axes.invert_yaxis()
    figure.savefig(path, dpi=150)
    plt.close(figure)
