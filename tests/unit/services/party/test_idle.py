"""A party that waits for runs is small."""

import subprocess
import sys

from parley.services.party import algorithms


def test_a_party_without_a_run_has_not_loaded_torch():
    """It takes more memory than everything else of the service; an algorithm brings it along."""
    program = (
        "import sys, parley.services.party.__main__ as party\n"
        "assert 'torch' not in sys.modules, 'loaded at the start'\n"
        f"import {algorithms.__name__} as algorithms\n"
        f"algorithms.{algorithms.party_side.__name__}('bambi')\n"
        "assert 'torch' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)
