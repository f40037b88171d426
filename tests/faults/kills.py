"""Random kills: any process, any time; every run ends, with the bits and the ledgers of the undisturbed run.

A kill's moment is counted in bytes that have passed between the services, not in seconds: it falls into the run however
fast the machine is, and anywhere in it, the opening of its sessions included.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from parley.client import Federation, Run
from parley.testing.remains import Remains, remains_of, start, wait_for_end
from tests.faults.cases import ASYNCHRONOUS, CASES, LONG, PARTIES, TARGET, asynchronous_case, make_tables, spec_text
from tests.faults.harness import DisturbableFederation, Kill, make_federation
from tests.faults.tally import Tally

RUNS = 2
"""Runs that every kill disturbs, of different cases."""
AT_ONCE = 6
"""Undisturbed runs at once."""
HOW = ("runs resumed", "runs hit while they opened", "runs not reached")
LATEST = 0.95
"""Share of the runs' traffic after which no kill is aimed: the rest is for runs that send a little less."""


@dataclass(frozen=True)
class Undisturbed:
    """What runs leave where nothing disturbs them, and what they send."""

    remains: dict[str, Remains]
    passed_bytes: dict[str, int]
    """Of a run of each case."""


def kill_campaign(directory: Path, kills: int, seed: int) -> Tally:
    """Kill a random process at a random moment of each of `kills` pairs of runs.

    A failure is reported with its number: a seed disturbs the same runs at the same places, up to timing.
    """
    chance, data = random.Random(seed), directory / "data"
    make_tables(data)
    cases = CASES | {ASYNCHRONOUS: asynchronous_case(data)}
    requests = _requests(list(cases), RUNS * kills, seed, chance)
    tally = Tally("kills")
    algorithms = dict.fromkeys(case["train"]["algorithm"] for case in cases.values())
    each = [f"{algorithm} {how}" for algorithm in algorithms for how in HOW]
    for what in ("kills", "of a party", "of the coordinator", *HOW, *each):
        tally.count(what, 0)  # in this order
    expected = _undisturbed(directory / "undisturbed", data, cases, requests)
    tally.count("undisturbed runs", len(expected.remains))
    federation = make_federation(directory / "disturbed", data)
    with federation, federation.connect() as client:
        for number in range(kills):
            block = requests[RUNS * number : RUNS * (number + 1)]
            try:
                _disturb(federation, client, cases, block, expected, chance, tally)
            except AssertionError as error:
                tally.fail(f"kill {number} (seed {seed}): {error}")
    return tally


def _requests(names: list[str], count: int, seed: int, chance: random.Random) -> list[tuple[str, str]]:
    """(request id, case): every case equally often; runs that are disturbed together take about equally long."""
    order: list[str] = []
    streams = [_stream([name for name in names if (name in LONG) is long], chance) for long in (True, False)]
    while len(order) < count:
        order += [next(streams[len(order) // RUNS % 2]) for _ in range(RUNS)]
    return [(f"kill-{seed}-{number}", case) for number, case in enumerate(order[:count])]


def _stream(names: list[str], chance: random.Random) -> Iterator[str]:
    """The names in random order, over and over."""
    while True:
        yield from chance.sample(names, len(names))


def _disturb(
    federation: DisturbableFederation,
    client: Federation,
    cases: dict[str, dict[str, Any]],
    block: Sequence[tuple[str, str]],
    expected: Undisturbed,
    chance: random.Random,
    tally: Tally,
) -> None:
    victim = chance.choice([*PARTIES, "coordinator"])
    share = chance.uniform(0.0, LATEST)
    passed = share * sum(expected.passed_bytes[case] for _, case in block)
    kill = Kill(federation, victim, passed, chance.uniform(0.0, 0.02), chance.choice([0.0, 0.0, 0.5]))
    kill.start()
    disturbed = f"{victim} after {share:.0%} of {' and '.join(case for _, case in block)}"
    try:
        runs = [start(client, spec_text(cases[case]), request_id) for request_id, case in block]
        ended = [wait_for_end(client, run.run_id) for run in runs]
    finally:
        kill.finish()
    tally.count("kills")
    tally.count(f"of {'the coordinator' if victim == 'coordinator' else 'a party'}")
    for (request_id, case), run in zip(block, ended, strict=True):
        how, algorithm = _how(run, kill.at), cases[case]["train"]["algorithm"]
        tally.count(how)
        tally.count(f"{algorithm} {how}")
        left = remains_of(federation, client, run.run_id)
        if case == ASYNCHRONOUS:
            if left.state != "COMPLETED" or not run.metrics["sub-optimality"] <= TARGET:
                tally.fail(f"{disturbed}, {request_id}: {run.reason or run.state}, {run.metrics}")
        elif left != expected.remains[_key(cases, request_id, case)]:
            known = expected.remains[_key(cases, request_id, case)]
            tally.fail(f"{disturbed}, {request_id}, {case}: {run.reason or run.state}; {left} != {known}")


def _how(run: Run, killed: datetime) -> str:
    if run.message.attempt > 1:
        return HOW[0]
    return HOW[1] if killed < datetime.fromisoformat(run.message.changed) else HOW[2]


def _key(cases: dict[str, dict[str, Any]], request_id: str, case: str) -> str:
    """Where noise is a function of the run's id, every run has its own undisturbed twin; else a case has one."""
    content = cases[case]
    noised = content["privacy"].get("labels", {"mechanism": "off"})["mechanism"] != "off"
    return request_id if noised or content["train"]["algorithm"] == "ldp_dsbo" else case


def _undisturbed(
    directory: Path, data: Path, cases: dict[str, dict[str, Any]], requests: Sequence[tuple[str, str]]
) -> Undisturbed:
    wanted = {_key(cases, request_id, case): (request_id, case) for request_id, case in reversed(requests)}
    remains: dict[str, Remains] = {}
    passed_bytes: dict[str, int] = {}
    with make_federation(directory, data) as federation, federation.connect() as client:
        alone = {case: key for key, (_, case) in reversed(wanted.items())}
        for case, key in alone.items():
            before = federation.passed_bytes
            remains |= _run_to_end(federation, client, cases, {key: wanted[key]})
            passed_bytes[case] = federation.passed_bytes - before
        rest = {key: request for key, request in wanted.items() if key not in remains}
        for part in _parts(rest, AT_ONCE):
            remains |= _run_to_end(federation, client, cases, part)
    return Undisturbed(remains, passed_bytes)


def _run_to_end(
    federation: DisturbableFederation,
    client: Federation,
    cases: dict[str, dict[str, Any]],
    wanted: dict[str, tuple[str, str]],
) -> dict[str, Remains]:
    runs = {key: client.start(spec_text(cases[case]), request_id) for key, (request_id, case) in wanted.items()}
    for run in runs.values():
        ended = wait_for_end(client, run.run_id)
        if ended.state != "COMPLETED":
            raise AssertionError(f"the undisturbed run {run.run_id} is {ended.state}: {ended.reason}")
    return {key: remains_of(federation, client, run.run_id) for key, run in runs.items()}


def _parts(wanted: dict[str, tuple[str, str]], size: int) -> Iterator[dict[str, tuple[str, str]]]:
    keys = list(wanted)
    for first in range(0, len(keys), size):
        yield {key: wanted[key] for key in keys[first : first + size]}
