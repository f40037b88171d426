"""Shows runs in MLflow and TensorBoard, as they go. What fails there is told in the log and tried again; runs go on.

They are told what a client sees that may `watch` and read the `ledger`: settings, metrics, ε, bytes, the model card.
"""

import asyncio
import importlib.util
import json
import logging
import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

import yaml

from parley.dashboard.card import card_html, make_card
from parley.dashboard.views import EventView, RunAccess, RunView
from parley.services.coordinator.config import MlflowConfig, TrackingConfig
from parley.services.wire.configuration import ConfigInvalid
from parley.spec.events import RunPrivacy, without_details

RETRY_SECONDS, LONGEST_RETRY_SECONDS = 5.0, 300.0
LONGEST_PARAMETER = 500
"""Of a setting's text: MLflow's own limit."""
MOST_PARAMETERS = 100
"""That MLflow takes at once."""
RUN_TAG, SEQUENCE_TAG = "parley.run_id", "parley.sequence"
_STATUS = {"COMPLETED": "FINISHED", "BUDGET_EXHAUSTED": "FINISHED", "CANCELLED": "KILLED"}
"""What MLflow calls how a run ended; FAILED otherwise."""
logger = logging.getLogger(__name__)


class Tracker(Protocol):
    """A program that shows runs. Its methods may block, and raise anything."""

    def open(self, run: RunView) -> int:
        """Take up a run; returns the newest event that it has already."""

    def write(self, run: RunView, event: EventView, figures: Mapping[str, float]) -> None:
        """Show what an event has told."""

    def close(self, run: RunView, artefacts: Mapping[str, str]) -> None:
        """A run has ended; `artefacts` are texts by the names of their files."""


class MlflowTracker:
    """Runs in an experiment of MLflow."""

    def __init__(self, config: MlflowConfig) -> None:
        from mlflow.tracking import MlflowClient

        self._client, self._config = MlflowClient(tracking_uri=config.uri), config
        self._runs: dict[str, str] = {}

    def open(self, run: RunView) -> int:
        """Find the run by its tag, or make it with its settings."""
        found = self._client.search_runs([self._experiment()], f"tags.`{RUN_TAG}` = '{run.run_id}'", max_results=1)
        if found:
            self._runs[run.run_id] = found[0].info.run_id
            self._client.update_run(found[0].info.run_id, status="RUNNING")
            return int(found[0].data.tags.get(SEQUENCE_TAG, 0))
        from mlflow.entities import Param

        tags = {RUN_TAG: run.run_id, "parley.parties": ", ".join(run.parties), "parley.started_by": run.started_by}
        made = self._client.create_run(self._experiment(), run_name=run.run_id, tags=tags)
        self._runs[run.run_id] = made.info.run_id
        settings = [Param(name, value) for name, value in settings_of(run.spec_yaml).items()]
        for first in range(0, len(settings), MOST_PARAMETERS):
            self._client.log_batch(made.info.run_id, params=settings[first : first + MOST_PARAMETERS])
        self._client.log_text(made.info.run_id, run.spec_yaml, "spec.yaml")
        return 0

    def write(self, run: RunView, event: EventView, figures: Mapping[str, float]) -> None:
        """Log the figures at the run's step, and how far this has come."""
        from mlflow.entities import Metric, RunTag

        moment = int(1000 * _seconds(event.time))
        metrics = [Metric(name, value, moment, event.step) for name, value in figures.items()]
        tags = [RunTag(SEQUENCE_TAG, str(event.sequence)), RunTag("parley.state", run.state)]
        self._client.log_batch(self._runs[run.run_id], metrics=metrics, tags=tags)

    def close(self, run: RunView, artefacts: Mapping[str, str]) -> None:
        """Log the artefacts and end the run."""
        made = self._runs.pop(run.run_id)
        for name, content in artefacts.items():
            self._client.log_text(made, content, name)
        self._client.set_tag(made, "parley.state", run.state)
        self._client.set_terminated(made, _STATUS.get(run.state, "FAILED"))

    def _experiment(self) -> str:
        name = self._config.experiment
        known = self._client.get_experiment_by_name(name)
        if known is None:
            return str(self._client.create_experiment(name, artifact_location=self._config.artefacts))
        return str(known.experiment_id)


class TensorBoardTracker:
    """A folder of event files for each run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writers: dict[str, Any] = {}

    def open(self, run: RunView) -> int:
        """Begin an event file; settings stand in the first one, as text."""
        from tensorboardX import SummaryWriter

        if run.run_id in self._writers:
            self._writers.pop(run.run_id).close()
        folder = self._folder / run.run_id
        self._writers[run.run_id] = SummaryWriter(logdir=str(folder))
        known = folder / "sequence"
        if known.exists():
            return int(known.read_text())
        rows = "\n".join(f"| `{name}` | {value} |" for name, value in settings_of(run.spec_yaml).items())
        self._writers[run.run_id].add_text("settings", f"| setting | value |\n|---|---|\n{rows}")
        return 0

    def write(self, run: RunView, event: EventView, figures: Mapping[str, float]) -> None:
        """Add the figures at the run's step, and note how far this has come."""
        writer = self._writers[run.run_id]
        for name, value in figures.items():
            writer.add_scalar(name.replace(" ", "_"), value, event.step, walltime=_seconds(event.time))
        writer.flush()
        (self._folder / run.run_id / "sequence").write_text(str(event.sequence))

    def close(self, run: RunView, artefacts: Mapping[str, str]) -> None:
        """Keep the artefacts beside the event files, and end those."""
        for name, content in artefacts.items():
            (self._folder / run.run_id / name).write_text(content)
        writer = self._writers.pop(run.run_id)
        writer.add_text("state", run.state, run.step)
        writer.close()


def open_trackers(config: TrackingConfig | None) -> Sequence[Tracker]:
    """The trackers that a configuration asks for.

    Raises:
        ConfigInvalid: if one is not installed.
    """
    found: list[Tracker] = []
    if config is not None and config.mlflow is not None:
        if importlib.util.find_spec("mlflow") is None:
            raise ConfigInvalid("tracking.mlflow needs MLflow: pip install 'parley-fl[mlflow]'")
        found.append(MlflowTracker(config.mlflow))
    if config is not None and config.tensorboard is not None:
        if importlib.util.find_spec("tensorboardX") is None:
            raise ConfigInvalid("tracking.tensorboard needs a writer: pip install 'parley-fl[tensorboard]'")
        found.append(TensorBoardTracker(config.tensorboard))
    return found


class Tracking:
    """Follows every run that is driven, for each tracker by itself."""

    def __init__(self, trackers: Sequence[Tracker], runs: RunAccess) -> None:
        self._trackers, self._runs = trackers, runs
        self._tasks: dict[tuple[int, str], asyncio.Task[None]] = {}

    def follow(self, run_id: str) -> None:
        """Show a run until it has ended, unless it is being shown."""
        for number, tracker in enumerate(self._trackers):
            if (number, run_id) not in self._tasks:
                task = asyncio.create_task(self._follow(tracker, run_id))
                self._tasks[number, run_id] = task
                task.add_done_callback(lambda _, key=(number, run_id): self._tasks.pop(key, None))  # type: ignore[misc]

    async def stop(self) -> None:
        """Leave the runs as they are shown; what is missing is shown when they go on."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, tracker: Tracker, run_id: str) -> None:
        delay = RETRY_SECONDS
        while True:
            try:
                await self._show(tracker, run_id)
                return
            except Exception as error:
                name = type(tracker).__name__
                logger.warning("%s does not take run %s (%s); it is tried again", name, run_id, type(error).__name__)
                logger.debug("%s", error)
            await asyncio.sleep(delay)
            delay = min(2 * delay, LONGEST_RETRY_SECONDS)

    async def _show(self, tracker: Tracker, run_id: str) -> None:
        run = await self._runs.run(run_id)
        after = await asyncio.to_thread(tracker.open, run)
        async for event, now in self._runs.watch(run_id, after):
            await asyncio.to_thread(tracker.write, now, event, figures_of(event))
        ended = await self._runs.run(run_id)
        await asyncio.to_thread(tracker.close, ended, await self._artefacts(ended))

    async def _artefacts(self, run: RunView) -> dict[str, str]:
        events, ledger = await self._runs.events(run.run_id), await self._runs.ledger(run.run_id)
        parties, tuned = await self._runs.parties(), await self._runs.coefficients(run.run_id)
        card = make_card(run, events, ledger, parties, self._runs.version, tuned)
        return {"card.json": json.dumps(card, indent=1, default=str), "card.html": card_html(card)}


def figures_of(event: EventView) -> dict[str, float]:
    """What an event measured, and the ε that it tells of; only finite numbers. The card has what single cells say."""
    found = without_details(event.metrics)
    if isinstance(event.body, RunPrivacy):
        found["epsilon"] = event.body.epsilon
    return {name: float(value) for name, value in found.items() if math.isfinite(value)}


def settings_of(spec_yaml: str) -> dict[str, str]:
    """Every setting of a spec by its path."""
    return dict(_flattened("", yaml.safe_load(spec_yaml)))


def _flattened(path: str, value: Any) -> list[tuple[str, str]]:
    if isinstance(value, dict):
        return [
            pair for name, item in value.items() for pair in _flattened(f"{path}.{name}" if path else str(name), item)
        ]
    return [(path, (value if isinstance(value, str) else json.dumps(value, default=str))[:LONGEST_PARAMETER])]


def _seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()
