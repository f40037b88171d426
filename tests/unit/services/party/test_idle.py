"""A party that waits for runs is small."""

import subprocess
import sys


def test_a_party_without_a_run_has_not_loaded_torch():
    """It takes more memory than everything else of the service; an algorithm brings it along."""
    program = (
        "import sys, parley.services.party.__main__ as party\n"
        "assert 'torch' not in sys.modules, 'loaded at the start'\n"
        "from parley.services.party.algorithms import party_side\n"
        "party_side('bambi')\n"
        "assert 'torch' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)
