"""Run the campaigns: `python -m tests.faults [--quick] [--seed N] [NAME ...]`; one line for each, with its counts."""

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.faults.disturbances import disturbance_campaign
from tests.faults.fuzz_inputs import input_campaign
from tests.faults.fuzz_services import fuzz_campaign
from tests.faults.kills import kill_campaign
from tests.faults.tally import Tally

CAMPAIGNS: dict[str, Callable[[Path, bool, int], Tally]] = {
    "kills": lambda directory, quick, seed: kill_campaign(directory, 20 if quick else 200, seed),
    "disturbances": lambda directory, quick, seed: disturbance_campaign(directory, 1 if quick else 2, seed),
    "inputs": lambda _, quick, seed: input_campaign(*((2_000, 200) if quick else (100_000, 10_000)), seed),
    "services": lambda directory, quick, seed: fuzz_campaign(directory, 500 if quick else 20_000, seed),
}


def main() -> int:
    """Run what is asked for; the exit code says whether everything held."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="campaigns; all if left out")
    parser.add_argument("--quick", action="store_true", help="a short part of each")
    parser.add_argument("--seed", type=int, default=1, help="another seed, other faults")
    given = parser.parse_args()
    unknown = [name for name in given.names if name not in CAMPAIGNS]
    if unknown:
        parser.error(f"no campaign {unknown[0]}; there are {', '.join(CAMPAIGNS)}")
    failed = False
    for name in given.names or CAMPAIGNS:
        with tempfile.TemporaryDirectory(prefix="parley-faults-") as scratch:
            tally = CAMPAIGNS[name](Path(scratch), given.quick, given.seed)
        sys.stdout.write(f"{tally}\n")
        sys.stdout.writelines(f"  {failure}\n" for failure in tally.failures)
        sys.stdout.flush()
        failed = failed or bool(tally.failures)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
