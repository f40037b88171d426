"""A party that says it is of another version of Parley; otherwise the product's own."""

import runpy

from parley.services.wire import version

if __name__ == "__main__":
    version.VERSION, version.PROTOCOLS = "0.0.1-other", (1,)
    runpy.run_module("parley.services.party", run_name="__main__", alter_sys=True)
