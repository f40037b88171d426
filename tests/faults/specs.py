"""Specs that are nearly right: values, keys and lines of a right one changed at random."""

import random
from typing import Any

import yaml

from parley.testing.mutation import damaged

VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 3, 2**31, 2**63, 2**64, -(2**70), 0.5, 1e308, float("inf"), float("nan"), "", "0:5",
    "lower", "bank", "off", "plain", "é☃", "x" * 5000, [], {}, [[]], [None], {"a": {"b": []}}, ["bank", "bank"],
)  # fmt: skip
LINES = (
    "? [a, b]\n: 1", "&a [1]", "*a", "!!python/object:os.system x", "2026-99-99", "0x", "1_0_0", "- - - -", "{a: b",
    "\t- x", "%YAML 9.9", "---\n---", "<<: {name: b}", "=: 1", "!!binary x", "!!timestamp 1", "." * 50, "[" * 60,
    "12:61:61", "0b12", "0o9", "!!set {a}", "!!int x", "!!float '.'", "~: ~", "1: 2", "null: 1", "'\\0'", '"\\x00"',
)  # fmt: skip


def mutated_spec(text: str, chance: random.Random) -> str:
    """A text like `text`, changed as a hurried, or a hostile, hand would."""
    match chance.randrange(4):
        case 0:
            lines = text.splitlines()
            lines.insert(chance.randrange(len(lines) + 1), chance.choice(LINES))
            return "\n".join(lines)
        case 1:
            return damaged(text.encode(), chance).decode(errors="replace")
    content = yaml.safe_load(text)
    for _ in range(chance.choice((1, 1, 2, 4))):
        place = content
        while True:
            inner = [value for value in (place.values() if isinstance(place, dict) else place) if value]
            inner = [value for value in inner if isinstance(value, dict | list)]
            if not inner or chance.random() < 0.3:
                break
            place = chance.choice(inner)
        _change(place, chance)
    return yaml.safe_dump(content, sort_keys=False)


def _change(place: Any, chance: random.Random) -> None:
    value = chance.choice(VALUES)
    if isinstance(place, list):
        place.insert(chance.randrange(len(place) + 1), value)
        return
    name = chance.choice([*place, "unknown", 7]) if place else "unknown"
    if chance.random() < 0.2:
        place.pop(name, None)
    else:
        place[name] = value
