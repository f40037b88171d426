"""A curious relay: the product's own service, which also keeps every byte that it carries, in order, in each direction.

It writes one file for each direction of each connection into `recording` beside its configuration.
"""

import itertools
import sys
from pathlib import Path

import parley.services.relay.switchboard as switchboard
from parley.services.relay.__main__ import main
from parley.services.wire.process import run
from parley.services.wire.tunnels import splice

NUMBERS = itertools.count()


class Recorded:
    """A side whose bytes are written down as they are read."""

    def __init__(self, side, path):
        self._side, self._path = side, path

    async def read(self):
        data = await self._side.read()
        with self._path.open("ab") as file:
            file.write(data)
        return data

    async def write(self, data):
        await self._side.write(data)


async def _recorded(one, other):
    folder = Path(sys.argv[sys.argv.index("--config") + 1]).parent / "recording"
    folder.mkdir(exist_ok=True)
    number = next(NUMBERS)
    await splice(Recorded(one, folder / f"{number}-there"), Recorded(other, folder / f"{number}-back"))


if __name__ == "__main__":
    vars(switchboard)["splice"] = _recorded
    run(main, __doc__)
