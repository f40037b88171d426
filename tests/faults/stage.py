"""A federation in which scenarios play: it is disturbed, must notice, go on, and end with the undisturbed bits."""

import random
import time
from dataclasses import dataclass

import yaml

from parley.client import Federation, RequestRefused, Run
from parley.testing.remains import remains_of, wait_for_end
from tests.faults.cases import spec_of
from tests.faults.harness import DisturbableFederation, wait_for_step

STEPS = 120
CASE = "implicit, two trees, off"
"""Without label noise a model does not depend on the run's id, so one undisturbed run serves all comparisons."""
START_SECONDS = 30.0
NOTICE_SECONDS = 40.0
"""A silent peer shows within the round's deadline, or by keepalive (15 s); the rest is for a busy machine."""


@dataclass
class Stage:
    """A federation in which scenarios play, and the models that every run must end with."""

    federation: DisturbableFederation
    client: Federation
    chance: random.Random
    models: tuple[str, ...] = ()

    def start(self, **changes: object) -> Run:
        """A run that is long enough to be disturbed; a connection may need a moment after the disturbance before."""
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                return self.start_once(**changes)
            except RequestRefused as refused:
                if refused.reason != "PARTY_UNREACHABLE" or time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def start_once(self, **changes: object) -> Run:
        """The same, without patience."""
        return self.client.start(self._spec(**changes))

    def _spec(self, **changes: object) -> str:
        content = yaml.safe_load(spec_of(CASE, **{"round_seconds": 5, **changes}))
        content["train"]["upper"]["steps"] = STEPS
        return yaml.safe_dump(content)

    def run_some(self, **changes: object) -> Run:
        """A run that has made some steps already."""
        run = self.start(**changes)
        wait_for_step(self.client, run.run_id, self.chance.choice((5, 10, 20)))
        return run

    def wait_for_state(self, run: Run, state: str, seconds: float = NOTICE_SECONDS) -> Run:
        """Wait until a run is in a state."""
        deadline = time.monotonic() + seconds
        while self.client.run(run.run_id).state != state:
            if time.monotonic() > deadline:
                found = self.client.run(run.run_id)
                raise AssertionError(f"{run.run_id} is {found.state} ({found.reason}), not {state}")
            time.sleep(0.05)
        return self.client.run(run.run_id)

    def check_end(self, run: Run) -> Run:
        """The run completes with the undisturbed models."""
        ended = wait_for_end(self.client, run.run_id)
        if ended.state != "COMPLETED":
            raise AssertionError(f"{run.run_id} ended as {ended.state}: {ended.reason}")
        left = remains_of(self.federation, self.client, run.run_id)
        if self.models and left.models != self.models:
            raise AssertionError(f"{run.run_id} ended with other bits than an undisturbed run")
        self.models = left.models
        return ended

    def resume(self, run: Run) -> None:
        """Resume as a patient client: a party may need a moment before it answers again."""
        deadline = time.monotonic() + 60
        while True:
            try:
                run.resume()
                return
            except RequestRefused as refused:
                if refused.reason != "PARTY_UNREACHABLE" or time.monotonic() > deadline:
                    raise
                time.sleep(0.5)

    def until_reachable(self) -> None:
        """Wait until the coordinator answers."""
        deadline = time.monotonic() + 60
        while True:
            try:
                self.client.runs()
                return
            except RequestRefused:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
