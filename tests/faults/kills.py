"""Random kills: any process, any time; every run ends, with the bits and the ledger of the run that nothing disturbed."""

import random
import time
from pathlib import Path

from tests.faults.harness import (
    CASES,
    PARTIES,
    Kill,
    make_federation,
    remains_of,
    run_undisturbed,
    spec_of,
    start,
    wait_for_end,
)
from tests.faults.tally import Tally


def kill_campaign(directory: Path, kills: int, seed: int) -> Tally:
    """Kill a random process at a random moment of each of `kills` runs.

    A failure is told with its number: the same seed disturbs the same runs in the same way (up to the machine's timing).
    """
    chance = random.Random(seed)
    cases = [list(CASES)[number % len(CASES)] for number in range(kills)]
    requests = [(f"kill-{seed}-{number}", spec_of(case)) for number, case in enumerate(cases)]
    expected, seconds = run_undisturbed(directory / "undisturbed", directory / "data", requests)
    tally = Tally("kills")
    with make_federation(directory / "disturbed", directory / "data") as federation, federation.connect() as client:
        for number, (request_id, text) in enumerate(requests):
            victim = chance.choice([*PARTIES, "coordinator"])
            after = chance.uniform(0.0, 1.3 * seconds[request_id] + 0.3)
            kill = Kill(federation, victim, after, chance.choice([0.0, 0.0, 1.0]))
            told = f"kill {number} (seed {seed}): {victim} after {after:.3f} s, {cases[number]}"
            kill.start()
            run = start(client, text, request_id)
            ended = wait_for_end(client, run.run_id)
            kill.join()
            if kill.failure is not None:
                raise AssertionError(f"{told}: {kill.failure}")
            left = wait_until_readable(federation, client, run.run_id)
            tally.count("kills")
            tally.count(f"of {'the coordinator' if victim == 'coordinator' else 'a party'}")
            tally.count("resumed" if ended.message.attempt > 1 else "missed the rounds")
            if left != expected[request_id]:
                tally.fail(f"{told}: {ended.reason or ended.state} left {left}, not {expected[request_id]}")
    return tally


def wait_until_readable(federation, client, run_id):
    """What a run left, as soon as the coordinator can be asked (it may have been killed after the end)."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return remains_of(federation, client, run_id)
        except Exception:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
