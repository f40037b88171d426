"""One scenario for each kind of failure: what the run does meanwhile, and that it ends with the same bits."""

import random
import resource
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from parley.client import Federation, RequestRefused, Run
from parley.local import ProcessEnded
from services.wire.certificates import create_authority, issue
from tests.faults.harness import (
    DisturbableFederation,
    make_federation,
    remains_of,
    spec_of,
    wait_for_end,
    wait_for_step,
)
from tests.faults.proxy import Weather
from tests.faults.tally import Tally

STEPS = 120
CASE = "implicit, two trees, off"
"""Without label noise a model does not depend on the run's id, so one undisturbed run serves all comparisons."""
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
        """A run that is long enough to be disturbed."""
        return self.client.start(self._spec(**changes))

    def _spec(self, **changes: object) -> str:
        import yaml

        content = yaml.safe_load(spec_of(CASE, round_seconds=5, **changes))
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


def stopped_party(stage: Stage) -> None:
    """A party that hangs (SIGSTOP) is noticed by the round's deadline; when it goes on, so does the run."""
    run = stage.run_some()
    stage.federation.signal("shop", signal.SIGSTOP)
    try:
        paused = stage.wait_for_state(run, "PAUSED")
        if not paused.reason:
            raise AssertionError("a paused run says why")
    finally:
        stage.federation.signal("shop", signal.SIGCONT)
    stage.check_end(run)


def half_open_connection(stage: Stage) -> None:
    """Bytes vanish in the network while the connection stays open."""
    run = stage.run_some()
    proxy = stage.federation.proxies["telco"]
    proxy.weather = Weather(swallow=True)
    try:
        stage.wait_for_state(run, "PAUSED")
    finally:
        proxy.weather = Weather()
        proxy.cut()
    stage.check_end(run)


def dropped_connections(stage: Stage) -> None:
    """Connections break again and again."""
    run = stage.run_some()
    for _ in range(3):
        stage.federation.proxies[stage.chance.choice(["bank", "shop", "telco"])].cut()
        time.sleep(stage.chance.uniform(0.2, 1.0))
    stage.check_end(run)


def slow_network(stage: Stage) -> None:
    """Every message is late; nothing is lost, and the run is never paused."""
    stage.federation.proxies["bank"].weather = Weather(delay_seconds=0.003)
    try:
        ended = stage.check_end(stage.start())
        if ended.message.attempt != 1:
            raise AssertionError("a slow network is no failure")
    finally:
        stage.federation.proxies["bank"].weather = Weather()


def cut_network(stage: Stage) -> None:
    """A party cannot be reached by anyone for some seconds."""
    run = stage.run_some()
    proxy = stage.federation.proxies["bank"]
    proxy.weather = Weather(refuse=True)
    proxy.cut()
    try:
        stage.wait_for_state(run, "PAUSED")
        time.sleep(stage.chance.uniform(0.0, 2.0))
    finally:
        proxy.weather = Weather()
    stage.check_end(run)


def terminated_party(stage: Stage) -> None:
    """SIGTERM in the middle of a step: the process ends in order, and the run goes on when it is back."""
    run = stage.run_some()
    _terminate(stage, "telco")
    stage.federation.restart("telco")
    stage.check_end(run)


def terminated_coordinator(stage: Stage) -> None:
    """SIGTERM of the coordinator leaves the run where it is; it goes on by itself."""
    run = stage.run_some()
    _terminate(stage, "coordinator")
    stage.federation.restart("coordinator")
    _until_reachable(stage)
    stage.check_end(run)


def cancelled_while_a_party_hangs(stage: Stage) -> None:
    """Cancelling ends although a party does not answer; the run can be resumed."""
    run = stage.run_some()
    stage.federation.signal("bank", signal.SIGSTOP)
    try:
        started = time.monotonic()
        run.cancel()
        if time.monotonic() - started > NOTICE_SECONDS or run.refresh().state != "CANCELLED":
            raise AssertionError(f"cancelling took {time.monotonic() - started:.0f} s and left {run.state}")
    finally:
        stage.federation.signal("bank", signal.SIGCONT)
    _resume(stage, run)
    stage.check_end(run)


def cancelled_while_paused(stage: Stage) -> None:
    """A run that waits for a lost party can be cancelled, and resumed when the party is back."""
    run = stage.run_some()
    stage.federation.kill("shop")
    try:
        stage.wait_for_state(run, "PAUSED")
        run.cancel()
        if run.refresh().state != "CANCELLED":
            raise AssertionError(f"the cancelled run is {run.state}")
    finally:
        stage.federation.restart("shop")
    _resume(stage, run)
    stage.check_end(run)


def coordinator_killed_while_paused(stage: Stage) -> None:
    """A party and then the coordinator die; the coordinator waits for the party anew."""
    run = stage.run_some()
    stage.federation.kill("shop")
    try:
        stage.wait_for_state(run, "PAUSED")
        stage.federation.kill("coordinator")
        stage.federation.restart("coordinator")
        _until_reachable(stage)
        time.sleep(2.0)
        if stage.client.run(run.run_id).state not in ("PAUSED", "PENDING"):
            raise AssertionError(f"the run does not wait: {stage.client.run(run.run_id).reason}")
    finally:
        stage.federation.restart("shop")
    stage.check_end(run)


def damaged_checkpoint(stage: Stage) -> None:
    """A damaged byte in a party's newest checkpoint: all parties fall back to the one before."""
    run = stage.run_some()
    stage.federation.kill("shop")
    stage.wait_for_state(run, "PAUSED")
    kept = sorted(stage.federation.run_directory("shop", run.run_id).glob("checkpoint-*.safetensors"))
    content = bytearray(kept[-1].read_bytes())
    content[stage.chance.randrange(len(content))] ^= 1 << stage.chance.randrange(8)
    kept[-1].write_bytes(bytes(content))
    stage.federation.restart("shop")
    stage.check_end(run)
    newest = int(kept[-1].stem.removeprefix("checkpoint-"))
    resumed = [event.message for event in run.watch() if event.message.startswith("resumed")]
    if not resumed or int(resumed[-1].rsplit(" ", 1)[1]) >= newest:
        raise AssertionError(f"checkpoint {newest} is damaged, but the run {resumed}")


def full_disk(stage: Stage) -> None:
    """A checkpoint that cannot be written fails the run by name; with room again it is resumed."""
    process = stage.federation.processes["telco"]
    _, hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
    run = stage.run_some()
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (16, hard))
    try:
        ended = wait_for_end(stage.client, run.run_id)
        if ended.state != "FAILED" or "telco refused (STORAGE_FAILED)" not in ended.reason:
            raise AssertionError(f"a full disk ends as {ended.state}: {ended.reason}")
    finally:
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (hard, hard))
    _resume(stage, run)
    stage.check_end(run)


def changed_ledger(stage: Stage) -> None:
    """A ledger entry that is changed behind the coordinator's back is shown as broken."""
    run = stage.client.start(spec_of("implicit, pairwise, once"))
    wait_for_end(stage.client, run.run_id)
    if run.ledger().broken or not run.ledger().entries:
        raise AssertionError("a fresh ledger is whole and has an entry")
    database = stage.federation.directory / "state" / "coordinator" / "coordinator.db"
    with sqlite3.connect(database, timeout=30) as connection:
        changed = connection.execute(
            "UPDATE ledger_entries SET epsilon = epsilon / 2 WHERE run = ?", (run.run_id,)
        ).rowcount
    connection.close()
    if changed != 1 or "entry 0" not in run.ledger().broken:
        raise AssertionError(f"{changed} entries were changed, the ledger says {run.ledger().broken!r}")


def bad_certificates(stage: Stage) -> None:
    """Expired, not yet valid (a skewed clock) or another authority's: the party does not start, or is not reached."""
    federation = stage.federation
    folder, saved = federation.identity("shop"), federation.directory / "saved-identity"
    ours = federation.directory / "certificates" / "authority"
    shutil.copytree(folder, saved, dirs_exist_ok=True)
    federation.kill("shop")
    now = datetime.now(UTC)
    try:
        elsewhere = federation.directory / f"elsewhere-{stage.chance.getrandbits(40)}" / "authority"
        create_authority(elsewhere, "elsewhere", now=now - timedelta(days=9))
        for authority, moment in ((elsewhere, now - timedelta(days=3)), (ours, now + timedelta(days=2))):
            shutil.rmtree(folder)
            issue(authority, "shop", "party", ["localhost", "127.0.0.1"], days=1, out=folder, now=moment)
            try:
                federation.restart("shop")
                raise AssertionError(f"a certificate of {moment} for one day was taken")
            except ProcessEnded as ended:
                if "certificate.pem" not in str(ended):
                    raise
        shutil.rmtree(folder)
        issue(elsewhere, "shop", "party", ["localhost", "127.0.0.1"], out=folder)
        federation.restart("shop")
        try:
            stage.start()
            raise AssertionError("a party of another authority was trusted")
        except RequestRefused as refused:
            if refused.reason != "PARTY_UNREACHABLE":
                raise
        federation.kill("shop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(saved, folder)
        federation.restart("shop")
    stage.check_end(stage.start())


SCENARIOS: list[Callable[[Stage], None]] = [
    stopped_party,
    half_open_connection,
    dropped_connections,
    slow_network,
    cut_network,
    terminated_party,
    terminated_coordinator,
    cancelled_while_a_party_hangs,
    cancelled_while_paused,
    coordinator_killed_while_paused,
    damaged_checkpoint,
    full_disk,
    changed_ledger,
    bad_certificates,
]


def disturbance_campaign(directory: Path, repeats: int, seed: int) -> Tally:
    """Play every scenario `repeats` times."""
    tally = Tally("disturbances")
    with make_federation(directory / "federation", directory / "data") as federation, federation.connect() as client:
        stage = Stage(federation, client, random.Random(seed))
        stage.check_end(stage.start())
        for repeat in range(repeats):
            for scenario in SCENARIOS:
                try:
                    scenario(stage)
                except (AssertionError, RequestRefused, ProcessEnded) as error:
                    tally.fail(f"{scenario.__name__}, repeat {repeat} (seed {seed}): {error}")
                tally.count("scenarios")
    return tally


def _terminate(stage: Stage, name: str) -> None:
    stage.federation.signal(name, signal.SIGTERM)
    status = stage.federation.processes[name].wait(60)
    if status != 0:
        raise AssertionError(f"{name} ended with status {status} on SIGTERM")


def _until_reachable(stage: Stage) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            stage.client.runs()
            return
        except RequestRefused:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _resume(stage: Stage, run: Run) -> None:
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
