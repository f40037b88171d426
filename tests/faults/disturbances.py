"""One scenario for each kind of failure: what the run does meanwhile, and that it ends with the same bits."""

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

from parley.client import RequestRefused
from parley.local import ProcessEnded
from tests.faults import message_faults, storage_faults, trust_faults
from tests.faults.harness import make_federation
from tests.faults.proxy import Weather
from tests.faults.relay import Fate, Relay
from tests.faults.stage import NOTICE_SECONDS, Stage
from tests.faults.tally import Tally


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


def two_parties_cut_off_from_each_other(stage: Stage) -> None:
    """Everyone reaches the coordinator, but one party does not reach another: noticed, and mended when it does."""
    federation, proxy = stage.federation, stage.federation.proxies["bank"]
    relay = Relay("bank", proxy.target, federation.directory / "certificates", lambda *_: Fate())
    direct, proxy.target = proxy.target, relay.address
    proxy.cut()
    try:
        run = stage.run_some()
        senders = sorted(relay.pushers)
        if not senders:
            raise AssertionError("nobody sends to bank, so nobody can be cut off from it")
        relay.cut(stage.chance.choice(senders))
        paused = stage.wait_for_state(run, "PAUSED")
        if not paused.reason:
            raise AssertionError("a paused run says why")
        relay.cut_off.clear()
        stage.check_end(run)
    finally:
        proxy.target = direct
        proxy.cut()
        relay.close()


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
    stage.until_reachable()
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
    stage.resume(run)
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
    stage.resume(run)
    stage.check_end(run)


def coordinator_killed_while_paused(stage: Stage) -> None:
    """A party and then the coordinator die; the coordinator waits for the party anew."""
    run = stage.run_some()
    stage.federation.kill("shop")
    try:
        stage.wait_for_state(run, "PAUSED")
        stage.federation.kill("coordinator")
        stage.federation.restart("coordinator")
        stage.until_reachable()
        time.sleep(2.0)
        if stage.client.run(run.run_id).state not in ("PAUSED", "PENDING"):
            raise AssertionError(f"the run does not wait: {stage.client.run(run.run_id).reason}")
    finally:
        stage.federation.restart("shop")
    stage.check_end(run)


SCENARIOS: list[Callable[[Stage], None]] = [
    stopped_party,
    half_open_connection,
    dropped_connections,
    slow_network,
    cut_network,
    two_parties_cut_off_from_each_other,
    terminated_party,
    terminated_coordinator,
    cancelled_while_a_party_hangs,
    cancelled_while_paused,
    coordinator_killed_while_paused,
    message_faults.repeated_skipped_and_swapped_messages,
    message_faults.slow_reader,
    storage_faults.damaged_checkpoint,
    storage_faults.full_disk,
    storage_faults.full_disk_of_the_coordinator,
    storage_faults.changed_ledger,
    storage_faults.damaged_ledger_file,
    trust_faults.bad_certificates,
    trust_faults.other_version,
    trust_faults.skewed_clock,
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
                except (AssertionError, RequestRefused, ProcessEnded, OSError) as error:
                    tally.fail(f"{scenario.__name__}, repeat {repeat} (seed {seed}): {error}")
                tally.count("scenarios")
    return tally


def _terminate(stage: Stage, name: str) -> None:
    stage.federation.signal(name, signal.SIGTERM)
    status = stage.federation.processes[name].wait(60)
    if status != 0:
        raise AssertionError(f"{name} ended with status {status} on SIGTERM")
