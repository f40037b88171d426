"""Random kills: any process, any time; every run ends, with the bits and the ledger of the undisturbed run."""

import random
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

RUNS = 2
"""Runs that every kill disturbs, of different cases."""


def kill_campaign(directory: Path, kills: int, seed: int) -> Tally:
    """Kill a random process at a random moment of each of `kills` pairs of runs.

    A failure is told with its number: a seed disturbs the same runs in the same way (up to the machine's timing).
    """
    chance, names = random.Random(seed), list(CASES)
    cases = [names[number % len(names)] for number in range(RUNS * kills)]
    requests = [(f"kill-{seed}-{number}", spec_of(case)) for number, case in enumerate(cases)]
    expected, seconds = run_undisturbed(directory / "undisturbed", directory / "data", requests)
    tally = Tally("kills")
    with make_federation(directory / "disturbed", directory / "data") as federation, federation.connect() as client:
        for number in range(kills):
            block = requests[RUNS * number : RUNS * (number + 1)]
            victim = chance.choice([*PARTIES, "coordinator"])
            longest = max(seconds[request_id] for request_id, _ in block)
            after, early = chance.uniform(0.0, 1.1 * longest), chance.random() < 0.3
            told = f"kill {number} (seed {seed}): {victim} {after:.3f} s after the {'call' if early else 'start'}"
            kill = Kill(federation, victim, after, chance.choice([0.0, 0.0, 1.0]))
            if early:
                kill.start()
            runs = {request_id: start(client, text, request_id) for request_id, text in block}
            if not early:
                kill.start()
            kill.join()
            if kill.failure is not None:
                raise AssertionError(f"{told}: {kill.failure}")
            tally.count("kills")
            tally.count(f"of {'the coordinator' if victim == 'coordinator' else 'a party'}")
            for request_id, run in runs.items():
                ended = wait_for_end(client, run.run_id)
                tally.count("runs resumed" if ended.message.attempt > 1 else "runs not reached")
                left = remains_of(federation, client, run.run_id)
                if left != expected[request_id]:
                    tally.fail(f"{told}, {request_id}: {ended.reason or ended.state}; {left} != {expected[request_id]}")
    return tally
