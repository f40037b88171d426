"""One SHA-256 for a spec: of what was read, whatever the text looked like."""

import hashlib
import json

from parley.spec.run import RunSpec


def spec_digest(spec: RunSpec) -> str:
    """SHA-256, in hex, of the spec's canonical JSON: every field with its default filled in, keys in order.

    Numbers are written so that they read back to the same bits; infinities stay apart from missing values.
    """
    canonical = json.dumps(spec.model_dump(), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()
