"""Where the specs of several runs differ, field by field."""

from collections.abc import Mapping, Sequence
from typing import Any

from parley.spec.parsing import parse_spec


def differences(specs: Sequence[str]) -> dict[str, list[Any]]:
    """Fields that are not the same in all of them, each with its values; None where a spec has no such field."""
    flat = [_flat(parse_spec(text).model_dump(mode="json")) for text in specs]
    fields = dict.fromkeys(field for each in flat for field in each)
    found = {field: [each.get(field) for each in flat] for field in fields}
    return {field: values for field, values in found.items() if any(value != values[0] for value in values)}


def _flat(content: Any, path: str = "") -> dict[str, Any]:
    if isinstance(content, Mapping) and content:
        parts = [_flat(value, f"{path}.{name}" if path else name) for name, value in content.items()]
        return {field: value for part in parts for field, value in part.items()}
    return {path: content}
