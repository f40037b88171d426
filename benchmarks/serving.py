"""What a prediction costs: the latency of one row, and rows per second in batches, on a trained federation.

Three parties as real processes over mutual TLS, digits, every sum under pairwise masks. Rows are in a table that the
parties hold beside their training table. A prediction of a run opens a session with fresh keys at every party, and
closes it again; a deployed model keeps one open. A call that looks one run up (GetRun) shows what the wire alone takes,
and the same model in one process what the arithmetic takes. Callers at once are processes of their own: they, the
coordinator and the parties share one machine, and the processor time of each says what the limit is. The same callers
ask a bare gRPC server that sends their message back: nothing can answer more of them here.
"""

import asyncio
import functools
import multiprocessing
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from parley.benchmarks.echo import SINGLE, echo_process
from parley.benchmarks.null_federation import machine_rows, processor_seconds
from parley.benchmarks.rows import row_of
from parley.client import RequestRefused
from parley.local import LocalFederation
from parley.services.coordinator.config import LabelConfig
from parley.services.coordinator.labels import LabelStore
from parley.services.party.config import TableConfig
from parley.services.party.tables import TableStore
from parley.simulation import train_pooled
from parley.spec.parsing import parse_spec
from parley.splitting import split_dataset

PARTIES = ("bank", "shop", "telco")
SINGLES, BATCHES, BATCH = 200, 20, 1000
CALLERS, CALLER_PROCESSES, CALLING_SECONDS = 32, 2, 10.0
SWAPS = 20
SPEC = """
name: serving
parties: [bank, shop, telco]
split: {lower: 0.9, upper: lower, test: 0.1}
train: {algorithm: bambi, model: {kind: mlp, hidden: [64], out: 16}, upper: {steps: 5}}
privacy: {labels: {mechanism: "off"}}
"""
POLICY = {"predictions": {"rows_per_day": 1_000_000_000}}


def run() -> list[dict[str, Any]]:
    """Time single rows and batches; rows of case, metric, value, unit, baseline and ratio."""
    before = machine_rows()
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch)
        split_dataset("digits", PARTIES, directory / "data")
        files = {name: directory / "data" / f"{name}.parquet" for name in PARTIES}
        labels = {"train": {"path": directory / "data" / "labels.parquet"}}
        tables = {name: {"train": {"path": path}, "fresh": {"path": path}} for name, path in files.items()}
        alone = _alone(files, labels["train"]["path"])
        with (
            LocalFederation(directory, tables, labels, policy=POLICY) as federation,
            federation.connect() as client,
        ):
            trained, other = (client.start(f"seed: {seed}\n{SPEC}") for seed in (0, 1))
            trained.result()
            other.result()
            expected = trained.predict("fresh")
            ids = expected.ids
            picks = np.random.default_rng(0).integers(len(ids), size=SINGLES)
            deployed = client.deploy(trained, "served", "fresh")
            _times([functools.partial(deployed.predict, ids[row]) for row in picks])  # the first ones warm it up
            empty, warm, streamed = [], [], []
            for row in picks:  # by turns, so that whatever else the machine does meets both alike
                empty += _times([trained.refresh])
                warm += _times([functools.partial(deployed.predict, ids[row])])
                streamed += _times([functools.partial(client.predict, "served", ids=[ids[row]])])
            many = _many_callers(federation, ids)
            wrong, asked = _swapped(federation, client, (trained, other), ids)
            deployed.undeploy()
            singles = _times([functools.partial(trained.predict, "fresh", [ids[row]]) for row in picks[:50]])
            batches = _times([lambda: trained.predict("fresh", ids[:BATCH])] * BATCHES)
            whole = _times([lambda: trained.predict("fresh")] * 5)
    deployed_p50 = statistics.median(warm)
    cold = statistics.median(singles)
    batch, table = BATCH / statistics.median(batches), len(ids) / statistics.median(whole)
    return [
        *before,
        *latency_rows({"no prediction": empty, "deployed, one row": warm, "deployed, one row, streamed": streamed}),
        *many,
        row_of(f"deployed, {SWAPS} swaps", "answers", asked, "answers"),
        row_of(f"deployed, {SWAPS} swaps", "wrong or missing", wrong, "answers", "answers", wrong / asked),
        row_of("run, one row", "latency p50", 1e3 * cold, "ms", "deployed", cold / deployed_p50),
        row_of(f"run, {BATCH} rows", "throughput", batch, "rows/s", "one process", batch / alone),
        row_of(f"run, all {len(ids)} rows", "throughput", table, "rows/s", "one process", table / alone),
        *machine_rows()[1:],
    ]


def latency_rows(seconds: Mapping[str, Sequence[float]]) -> list[dict[str, Any]]:
    """The median of each kind of call against the first, which is GetRun, and its slowest hundredth against it."""
    base = statistics.median(next(iter(seconds.values())))
    rows: list[dict[str, Any]] = []
    for case, found in seconds.items():
        p50, p99 = (float(np.percentile(found, share)) for share in (50, 99))
        rows += [
            row_of(case, "latency p50", 1e3 * p50, "ms", "GetRun", p50 / base),
            row_of(case, "latency p99", 1e3 * p99, "ms", "its p50", p99 / p50),
        ]
    return rows


def _many_callers(federation: LocalFederation, ids: list[str]) -> list[dict[str, Any]]:
    """Single rows asked for by many callers at once, and the same calls to a server that only sends them back."""
    services = {name: process.pid for name, process in federation.processes.items()}
    client, coordinator = federation.identity("client"), federation.identity("coordinator")
    with multiprocessing.get_context("spawn").Pool(CALLER_PROCESSES) as pool:
        answered = called(pool, federation.addresses["coordinator"], client, ids, services, bare=False)
        with echo_process(coordinator) as (pid, ports):
            bare = called(pool, f"127.0.0.1:{ports['grpc+mtls']}", client, ids, {"echo": pid}, bare=True)
    case = f"deployed, {CALLERS} callers"
    against = row_of(
        case, "throughput, against bare gRPC", answered.rate, "rows/s", "bare gRPC, mTLS", answered.rate / bare.rate
    )
    return [*caller_rows(case, answered), against, *caller_rows(f"bare gRPC, {CALLERS} callers", bare)]


@dataclass(frozen=True)
class Called:
    """What callers at once were given."""

    latencies: Sequence[float]
    seconds: float
    spent: Mapping[str, float]
    """Processor seconds of each service, and of the callers."""

    @property
    def rate(self) -> float:
        """Answers a second."""
        return len(self.latencies) / self.seconds


def called(
    pool: Any, address: str, identity: Path, ids: list[str], services: Mapping[str, int], *, bare: bool
) -> Called:
    """Let callers in every process of the pool ask for a while."""
    before = {name: processor_seconds([pid]) for name, pid in services.items()}
    share = CALLERS // CALLER_PROCESSES
    arguments = [(address, str(identity), ids[place::2], share, bare) for place in range(CALLER_PROCESSES)]
    answers = pool.starmap(call_for_a_while, arguments, chunksize=1)
    spent = {name: processor_seconds([pid]) - before[name] for name, pid in services.items()}
    latencies = np.concatenate([each[0] for each in answers]).tolist()
    return Called(latencies, max(each[1] for each in answers), spent | {"callers": sum(each[2] for each in answers)})


def caller_rows(case: str, called: Called) -> list[dict[str, Any]]:
    """Answers a second, their latency, and whose processor time they take."""
    p50, p99 = (1e3 * float(np.percentile(called.latencies, share)) for share in (50, 99))
    total = sum(called.spent.values())
    cores = total / called.seconds
    rows = [
        row_of(case, "throughput", called.rate, "rows/s", "2000 a second", called.rate / 2000),
        row_of(case, "latency p50", p50, "ms"),
        row_of(case, "latency p99", p99, "ms", "its p50", p99 / p50),
        row_of(case, "cores in use", cores, "cores", "cores there are", cores / (os.cpu_count() or 1)),
    ]
    for name, used in called.spent.items():
        each = 1e6 * used / len(called.latencies)
        rows.append(row_of(f"{case}, {name}", "processor time", each, "µs/row", "all", used / total))
    return rows


def call_for_a_while(
    address: str, identity: str, ids: list[str], callers: int, bare: bool
) -> tuple[list[float], float, float]:
    """Ask for single rows from so many callers at once; returns their latencies, the time, and the processor time."""
    return asyncio.run(_call_for_a_while(address, identity, ids, callers, bare))


async def _call_for_a_while(
    address: str, identity: str, ids: list[str], callers: int, bare: bool
) -> tuple[list[float], float, float]:
    from parley.contracts.run.v1 import deployment_pb2, run_service_pb2_grpc
    from parley.services.wire.transport import open_channel

    times: list[float] = []
    request = deployment_pb2.PredictRowsRequest
    async with open_channel(address, Path(identity), "coordinator", "coordinator") as channel:
        if bare:
            ask = channel.unary_unary(SINGLE, request_serializer=request.SerializeToString)
        else:
            ask = run_service_pb2_grpc.RunServiceStub(channel).PredictRows

        async def call(place: int, until: float) -> None:
            while time.perf_counter() < until:
                place = (place + callers) % len(ids)
                started = time.perf_counter()
                await ask(request(name="served", ids=[ids[place]]))
                times.append(time.perf_counter() - started)

        await asyncio.gather(*(call(place, time.perf_counter() + 1.0) for place in range(callers)))  # warms up
        times.clear()
        started, spent = time.perf_counter(), time.process_time()
        await asyncio.gather(*(call(place, started + CALLING_SECONDS) for place in range(callers)))
        return times, time.perf_counter() - started, time.process_time() - spent


def _swapped(federation: LocalFederation, client: Any, runs: tuple[Any, Any], ids: list[str]) -> tuple[int, int]:
    """Answers that were wrong or did not come while versions were swapped, and all that were asked for."""
    expected = {run.run_id: run.predict("fresh").scores for run in runs}
    done, wrong, asked = threading.Event(), [0], [0]

    def ask() -> None:
        with federation.connect() as own:
            deployed, row = own.deployment("served"), 0
            while not done.is_set():
                row, asked[0] = (row + 1) % len(ids), asked[0] + 1
                try:
                    answer = deployed.ask(ids[row])
                    wrong[0] += bool(np.abs(answer.prediction.scores[0] - expected[answer.run_id][row]).max() > 1e-6)
                except RequestRefused:
                    wrong[0] += 1

    callers = [threading.Thread(target=ask) for _ in range(4)]
    for caller in callers:
        caller.start()
    for swap in range(SWAPS):
        client.deploy(runs[(swap + 1) % 2], "served", "fresh")
    done.set()
    for caller in callers:
        caller.join()
    return wrong[0], asked[0]


def _alone(files: dict[str, Path], labels: Path) -> float:
    """Rows per second of the same model in one process."""
    stores = {name: TableStore({"train": TableConfig(path=str(path))}) for name, path in files.items()}
    trained = train_pooled(parse_spec(SPEC), stores, LabelStore({"train": LabelConfig(path=str(labels))}))
    tables = [store.load("train") for store in stores.values()]
    return len(tables[0]) / statistics.median(_times([lambda: trained.predict(tables)] * BATCHES))


def _times(calls: list[Callable[[], object]]) -> list[float]:
    seconds = []
    for call in calls:
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return seconds


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Bars of latency and of throughput."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 1, figsize=(7, 4), layout="constrained")
    for axis, unit in zip(axes, ("ms", "rows/s"), strict=True):
        shown = [row for row in rows if row["unit"] == unit]
        names = [f"{row['case']}, {row['metric'].split()[-1]}" for row in shown]
        axis.bar_label(axis.barh(names, [row["value"] for row in shown], color="#4472a8"), fmt="%.3g", padding=3)
        axis.set(xlabel=unit)
        axis.invert_yaxis()
    axes[0].set(title="Prediction on a federation of three parties")
    figure.savefig(path, dpi=150)
    plt.close(figure)
