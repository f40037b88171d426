"""A spec's run with as many simulated parties as one likes: a data set is dealt out among them, in one process."""

import math
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from threadpoolctl import threadpool_limits

from parley.party.roles import SavedModel
from parley.services.coordinator.config import LabelConfig
from parley.services.coordinator.labels import LabelStore
from parley.services.party.config import TableConfig
from parley.services.party.tables import TableStore
from parley.simulation.runs import holdings_of, models_of, simulation_of
from parley.spec.parsing import parse_spec
from parley.spec.run import RunSpec
from parley.spec.yaml_text import read_yaml
from parley.splitting import split_dataset

Watch = Callable[[int, dict[str, float]], None]
"""Is told of each round trip, and of the newest metrics."""


@dataclass(frozen=True)
class Simulated:
    """What a simulated run gave, and what it cost."""

    metrics: dict[str, float]
    models: list[SavedModel]
    """Of every party."""
    rounds: int
    """Round trips."""
    setup_seconds: float
    """Until the first of them."""
    seconds: float
    """Of all of them."""
    memory_bytes: int
    """Most memory that this process has had."""


def party_names(parties: int) -> list[str]:
    """What simulated parties are called; in order of their names they are in order of their blocks."""
    width = len(str(parties))
    return [f"party-{number:0{width}d}" for number in range(1, parties + 1)]


def with_parties(text: str, parties: int) -> RunSpec:
    """The spec with so many parties in place of its own."""
    content: Any = read_yaml(text, what="spec", aliases=False).content
    return parse_spec(yaml.safe_dump(dict(content) | {"parties": party_names(parties)}))


def deal_out(spec: RunSpec, source: str, directory: Path, **options: Any) -> tuple[dict[str, TableStore], LabelStore]:
    """Cut a data set into the tables of a spec's parties: by rows if they hold rows of their own, else by columns."""
    names, by_rows = [entry.name for entry in spec.parties], spec.train.layout == "horizontal"
    summary = split_dataset(source, names, directory, rows=by_rows, seed=spec.seed, **options)
    paths = {(file.holder, file.content): file.path for file in summary.files}
    stores = {}
    for index, name in enumerate(names):
        fields: dict[str, Any] = {"path": str(paths[name, "features"])}
        if by_rows:
            fields |= {"label": "label", "label_path": str(paths[name, "labels"])}
        stores[name] = TableStore({spec.table_of(index): TableConfig(**fields)})
    labels = paths.get(("labels", "labels"))
    tables = {} if labels is None else {spec.label_table: LabelConfig(path=str(labels))}
    return stores, LabelStore(tables)


def simulate(
    spec: RunSpec, stores: dict[str, TableStore], labels: LabelStore, watch: Watch = lambda _, __: None
) -> Simulated:
    """Train through the roles, gates, codecs and secure sums of a deployed run; there is no network, nobody is lost."""
    started, newest, count = time.perf_counter(), dict[str, float](), 0
    torch.set_num_threads(1)

    def seen(_round: Any, _states: Any) -> None:
        nonlocal count
        count += 1
        watch(count, newest)

    def noted(report: Any) -> bool:
        newest.update(report.metrics)
        return False

    with threadpool_limits(1):
        # All parties share this process: how long a round takes says nothing about a party that is slow or gone.
        changes = {"round_seconds": math.inf} | ({"checkpoint_every": 0} if spec.stop is None else {})
        simulation = simulation_of(
            spec.model_copy(update=changes),
            holdings_of(spec, stores),
            labels.load,
            sums="protected",
        )
        begun = time.perf_counter()
        outcome = simulation.run(watch=seen, until=noted)
    ended = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    metrics = {name: value for name, value in outcome.metrics.items() if not math.isnan(value)}
    return Simulated(metrics, models_of(simulation, outcome), outcome.rounds, begun - started, ended - begun, peak)
