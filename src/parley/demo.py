"""The demo: a coordinator and three parties as local processes over mutual TLS, on data from scikit-learn."""

import contextlib
import json
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from typing import Any

from rich.console import Console

from parley.client import RequestRefused, Run
from parley.display import finite, size, table_of
from parley.local import LocalFederation
from parley.progress import Follower, Point
from parley.spec.parsing import parse_spec

PARTIES = ("bank", "shop", "telco")
SPEC = resources.files("parley") / "demo.yaml"


@dataclass(frozen=True)
class Figures:
    """What the demo measured."""

    accuracy: float
    """Of the federated model, on held-out rows with true labels."""
    pooled_accuracy: float
    """Of the same spec with the same noisy labels in one process, with all data in one place."""
    noiseless_accuracy: float
    """Of the same spec in one process with exact labels: what label privacy costs is the difference."""
    epsilon: float
    """Spent on each label, as the ledger says."""
    label_mechanism: str
    rounds: int
    bytes: int
    label_releases: int
    start_seconds: float
    """To make certificates and to bring four processes up."""
    train_seconds: float
    total_seconds: float


def run_demo(out: Path, json_path: Path, *, keep: bool, console: Console) -> Figures:
    """Run the demo; the picture lands in `out`. Every process that it starts is gone when it returns."""
    started = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    with _terminated_like_interrupted(), _folder(out, keep) as folder:
        federation = _federation(folder)
        console.print("Three organisations hold a third of each image; a coordinator holds the labels.")
        begun = time.monotonic()
        with contextlib.ExitStack() as processes:
            with console.status("Starting four processes with certificates of their own ..."):
                processes.enter_context(federation)
            start_seconds = time.monotonic() - begun
            client = processes.enter_context(federation.connect())
            console.print(f"Up after {start_seconds:.1f} s: {', '.join([*PARTIES, 'coordinator'])}, over mutual TLS.")
            begun = time.monotonic()
            run = client.start(SPEC.read_text())
            follower = Follower(run, console)
            for _ in follower.follow():
                pass
            train_seconds = time.monotonic() - begun
            if run.state != "COMPLETED":
                raise RequestRefused(run.state, f"{run.reason}; look at {folder} (--keep keeps it)")
            ledger = run.ledger()
        console.print("All processes are down. Training the same spec in one process, to compare ...")
        pooled = _pooled(federation, run)
        figures = Figures(
            accuracy=run.metrics["test accuracy"],
            pooled_accuracy=pooled["same noise"],
            noiseless_accuracy=pooled["exact labels"],
            epsilon=ledger.report.pure_epsilon,
            label_mechanism=parse_spec(SPEC.read_text()).privacy.labels.mechanism,
            rounds=int(run.metrics["rounds"]),
            bytes=int(run.metrics["bytes"]),
            label_releases=int(run.metrics["label releases"]),
            start_seconds=start_seconds,
            train_seconds=train_seconds,
            total_seconds=time.monotonic() - started,
        )
    picture = out / "demo.png"
    draw(figures, follower.points, picture)
    _write(json_path, figures, follower.points, picture)
    console.print(table_of(_rows(figures), "Digits, hyper-representation (VFHRL), held-out rows"))
    kept = f", everything else in {folder}" if keep else ""
    console.print(f"Picture: {picture}, figures: {json_path}{kept}", soft_wrap=True)
    return figures


def draw(figures: Figures, points: list[Point], path: Path) -> None:
    """Draw loss, accuracy and traffic over upper iterations, and say what crossed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.4), layout="constrained")
    loss, accuracy, traffic = figure.subplots(1, 3)
    figure.suptitle("Three organisations, no shared data: BAMBI on digits", fontsize=13, fontweight="bold")
    loss.plot(*_series(points, "upper loss"), color="tab:blue", marker=".", label="training loss (noisy labels)")
    loss.plot(*_series(points, "test loss"), color="tab:green", marker="o", label="test loss (true labels)")
    loss.set(title="Loss", xlabel="upper iteration", ylim=(0, None))
    loss.legend(frameon=False, fontsize=8)
    accuracy.plot(*_series(points, "test accuracy"), color="tab:green", marker="o", label="federated")
    accuracy.axhline(figures.pooled_accuracy, color="black", linestyle="--", label="pooled, same noisy labels")
    accuracy.axhline(figures.noiseless_accuracy, color="tab:grey", linestyle=":", label="pooled, exact labels")
    accuracy.set(title=f"Test accuracy: {figures.accuracy:.1%} at ε = {figures.epsilon:g}", xlabel="upper iteration")
    accuracy.legend(frameon=False, fontsize=8, loc="lower right")
    steps, crossed = _series(points, "bytes")
    traffic.fill_between(steps, [count / 1e6 for count in crossed], color="tab:purple", alpha=0.35)
    traffic.set(title=f"What crossed: {size(figures.bytes)}, {figures.rounds} rounds", xlabel="upper iteration")
    traffic.set(ylabel="MB, both ways, all parties", ylim=(0, 1.6 * figures.bytes / 1e6))
    traffic.text(
        0.04,
        0.96,
        "up: embeddings, masked pairwise\n"
        f"down: gradients of labels noised once, ε = {figures.epsilon:g}\n"
        "down: curvature products, free of labels\n"
        "no message has a field for features, labels or models",
        transform=traffic.transAxes,
        va="top",
        fontsize=8,
    )
    for axes in (loss, accuracy, traffic):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)


def _series(points: list[Point], name: str) -> tuple[list[int], list[float]]:
    found = {point.step: point.metrics[name] for point in points if name in point.metrics}
    return list(found), list(found.values())


def _federation(folder: Path) -> LocalFederation:
    from parley.splitting import split_dataset

    split_dataset("digits", PARTIES, folder / "data")
    tables = {name: {"train": {"path": folder / "data" / f"{name}.parquet"}} for name in PARTIES}
    labels = {"train": {"path": folder / "data" / "labels.parquet"}}
    policy = {
        "minimum_parties": len(PARTIES),
        "differencing": "refuse",
        "sums_per_row": "columns",
    }  # as organisations would have it
    return LocalFederation(folder, tables, labels, policy=policy)


def _pooled(federation: LocalFederation, run: Run) -> dict[str, float]:
    """Test accuracy of the same spec in one process: with the run's own label noise, and with exact labels."""
    from parley.privacy.noise import read_or_create_key
    from parley.services.coordinator.config import LabelConfig
    from parley.services.coordinator.labels import LabelStore
    from parley.services.party.config import TableConfig
    from parley.services.party.tables import TableStore
    from parley.simulation import train_pooled

    tables = {
        name: TableStore({table: TableConfig.model_validate(fields) for table, fields in held.items()})
        for name, held in federation.tables.items()
    }
    labels = LabelStore({name: LabelConfig.model_validate(fields) for name, fields in federation.labels.items()})
    key = read_or_create_key(federation.directory / "state" / "coordinator" / "label-noise.key")
    spec = parse_spec(run.message.spec_yaml)
    exact = spec.privacy.labels.model_copy(update={"mechanism": "off"})
    noiseless = spec.model_copy(update={"privacy": spec.privacy.model_copy(update={"labels": exact})})
    same = train_pooled(spec, tables, labels, noise_key=key, run_id=run.run_id)
    return {
        "same noise": same.metrics["test accuracy"],
        "exact labels": train_pooled(noiseless, tables, labels).metrics["test accuracy"],
    }


def _rows(figures: Figures) -> list[Mapping[str, Any]]:
    columns = ("", "federated", "pooled, same noisy labels", "pooled, exact labels")
    accuracies = (figures.accuracy, figures.pooled_accuracy, figures.noiseless_accuracy)
    table = [
        ("test accuracy", *(f"{value:.4f}" for value in accuracies)),
        (f"ε of each label ({figures.label_mechanism})", f"{figures.epsilon:g}", f"{figures.epsilon:g}", "∞"),
        ("rounds", str(figures.rounds), "", ""),
        ("bytes that crossed", size(figures.bytes), "", ""),
        ("seconds to train", f"{figures.train_seconds:.1f}", "", ""),
        ("seconds in all", f"{figures.total_seconds:.1f}", "", ""),
    ]
    return [dict(zip(columns, row, strict=True)) for row in table]


def _write(path: Path, figures: Figures, points: list[Point], picture: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"name": "demo", **asdict(figures), "picture": str(picture), "curve": [asdict(point) for point in points]}
    path.write_text(json.dumps(finite(content), indent=2, ensure_ascii=False) + "\n")


@contextlib.contextmanager
def _folder(out: Path, keep: bool) -> Iterator[Path]:
    """Where data, certificates, state and logs go: kept under `out`, or gone at the end."""
    if keep:
        kept = out / f"federation-{datetime.now(UTC):%Y%m%d-%H%M%S}"
        kept.mkdir()
        yield kept.resolve()
        return
    with tempfile.TemporaryDirectory(prefix="parley-demo-") as scratch:
        yield Path(scratch)


@contextlib.contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """Let SIGTERM unwind the stack as Ctrl-C does, so that no process is left behind."""

    def interrupt(number: int, _: Any) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
