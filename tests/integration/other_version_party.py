"""A party of another version and with a fast clock: the product's own service, which says that it is 9.9.9."""

import time

import parley.services.wire.version

parley.services.wire.version.VERSION, parley.services.wire.version.PROTOCOLS = "9.9.9", (9,)
_now = time.time
time.time = lambda: _now() + 120

from parley.services.party.__main__ import main  # noqa: E402 (the version is read when modules are imported)
from parley.services.wire.process import run  # noqa: E402

if __name__ == "__main__":
    run(main, __doc__)
