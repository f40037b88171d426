"""One SHA-256 for a spec: of what was read, whatever the text looked like.

Two versions of Parley must find the same digest for the same spec, since parties compare theirs, and a party compares
that of a run that it goes on with after an upgrade. So fields that are younger than `first_fields.txt` count only where
a spec sets them to something else than their default, and the default of a field does not change once it is released.
The default of an older field counts: a version that reads it differently refuses to go on with the run.
"""

import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from parley.spec.run import RunSpec


def spec_digest(spec: RunSpec) -> str:
    """SHA-256, in hex, of the spec's canonical JSON: every field with its default filled in, keys in order.

    Numbers are written so that they read back to the same bits; infinities stay apart from missing values.
    """
    canonical = json.dumps(_content(spec, spec.model_dump()), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


@functools.cache
def first_fields() -> Mapping[str, frozenset[str]]:
    """The fields that every version reads alike, by the section's class; of a section that is not listed, all count."""
    lines = (Path(__file__).parent / "first_fields.txt").read_text("utf-8").splitlines()
    return {name: frozenset(fields.split()) for name, _, fields in (line.partition(": ") for line in lines)}


def _content(value: Any, dumped: Any) -> Any:
    """What was dumped of a value, without younger fields that stand at their default."""
    if isinstance(value, BaseModel):
        kind = type(value)
        first = first_fields().get(f"{kind.__module__}.{kind.__qualname__}".removeprefix("parley."))
        return {
            name: _content(getattr(value, name), dumped[name])
            for name, field in kind.model_fields.items()
            if name in dumped
            and (first is None or name in first or getattr(value, name) != field.get_default(call_default_factory=True))
        }
    if isinstance(value, list | tuple):
        return [_content(one, other) for one, other in zip(value, dumped, strict=True)]
    if isinstance(value, dict):
        return {key: _content(one, dumped[key]) for key, one in value.items()}
    return dumped
