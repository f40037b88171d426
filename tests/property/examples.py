"""How much is fuzzed."""

import os

FUZZ_EXAMPLES = int(os.environ.get("PARLEY_FUZZ_EXAMPLES", "60"))
"""Examples of each fuzzing test; `make torture` raises it."""
