"""What is wrong with a text, in sentences: where, what, and what was probably meant."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from parley.spec.nearest import did_you_mean, nearest, unknown_field
from parley.spec.yaml_text import Path, YamlText

_SENTENCES = {
    "missing": "missing; this field must be written",
    "int_type": "must be a whole number{given}",
    "int_parsing": "must be a whole number{given}",
    "int_parsing_size": "must be a smaller whole number",
    "int_from_float": "must be a whole number{given}",
    "float_type": "must be a number{given}",
    "float_parsing": "must be a number{given}",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false{given}",
    "bool_parsing": "must be true or false{given}",
    "string_type": 'must be text; put it in quotes, such as "7"',
    "path_type": "must be the path of a file or folder",
    "tuple_type": "must be a list, such as [a, b]",
    "list_type": "must be a list, such as [a, b]",
    "dict_type": "must be a section of fields, such as {{name: value}}",
    "model_type": "must be a section of fields, such as {{name: value}}",
    "model_attributes_type": "must be a section of fields, such as {{name: value}}",
    "greater_than": "must be more than {gt:g}{given}",
    "greater_than_equal": "must be at least {ge:g}{given}",
    "less_than": "must be less than {lt:g}{given}",
    "less_than_equal": "must be at most {le:g}{given}",
    "too_short": "needs at least {min_length} entries, and has {actual_length}",
    "too_long": "takes at most {max_length} entries, and has {actual_length}",
    "string_too_short": "needs at least {min_length} characters",
    "string_too_long": "takes at most {max_length} characters",
}
"""Sentences by the validator's name for what is wrong."""
_PATTERNS = {
    r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$": "may hold letters, digits, dots, dashes and underscores, at most 63",
    r"^[\w.]+:\w+$": "must be written as package.module:function",
    r"^(ray://)?(\[[0-9a-f:]+\]|[^\s:/\[\]]+):[0-9]{1,5}$": "must be a host and a port, such as 127.0.0.1:6379",
}
_WORD = re.compile(r"`?[A-Za-z_](?:[\w.]*\w)?")


@dataclass(frozen=True)
class Problem:
    """A mistake: where it is and what to write instead."""

    field: str
    line: int
    message: str

    def __str__(self) -> str:
        place = f"line {self.line}: " if self.line else ""
        return f"{place}{self.field + ': ' if self.field else ''}{self.message}"


def explained(error: ValidationError, kind: type[BaseModel], text: YamlText) -> list[Problem]:
    """Everything that the validator finds, as mistakes in the text.

    A list whose items are wrong counts as empty there: that it is too short says nothing more.
    """
    items = error.errors(include_url=False)
    wrong_inside = {item["loc"][:depth] for item in items for depth in range(len(item["loc"]))}
    return [
        _explain(item, kind, text) for item in items if item["type"] != "too_short" or item["loc"] not in wrong_inside
    ]


def _explain(item: Any, kind: type[BaseModel], text: YamlText) -> Problem:
    """One error of the validator, as a mistake in the text."""
    location = tuple(_written(item["loc"], text.content, item["type"] == "missing"))
    message = _sentence(item, kind, location, text.content)
    if item["type"].startswith("union_tag"):
        tag = str(item["ctx"]["discriminator"]).strip("'")
        location = (*location, tag)
    elif item["type"] == "value_error":
        location, message = _among_its_fields(message, location, text)
    return Problem(".".join(map(str, location)), _line(location, text), message)


def _sentence(item: Any, kind: type[BaseModel], location: Path, content: Any) -> str:
    reason, context = item["type"], item.get("ctx", {})
    given = item.get("input")
    if reason == "extra_forbidden":
        return unknown_field(str(location[-1]), kind, location[:-1], content)
    if reason in ("literal_error", "union_tag_invalid"):
        allowed = re.findall(r"'([^']*)'", context.get("expected") or context.get("expected_tags"))
        word = str(context.get("tag", given))
        return f"must be {_either(allowed) or context['expected']}, not {word[:40]!r}{did_you_mean(word, allowed)}"
    if reason == "union_tag_not_found" and isinstance(given, dict):
        tag = str(context["discriminator"]).strip("'")
        written = nearest(tag, [name for name in given if isinstance(name, str)])
        return f"missing: is it `{written}` that should be `{tag}`?" if written else f"{tag} is missing: write it here"
    if reason == "string_pattern_mismatch":
        return _PATTERNS.get(context["pattern"], f"must be written like {context['pattern']}")
    if reason in _SENTENCES:
        shown = f", not {given!r}" if isinstance(given, (str, int, float)) and len(str(given)) <= 40 else ""
        return _SENTENCES[reason].format(given=shown, **context)
    return str(item["msg"]).removeprefix("Value error, ")


def _either(words: list[str]) -> str:
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]])) if words else ""


def _written(location: Path, content: Any, missing: bool) -> Iterator[str | int]:
    """The part of an error's location that stands in the text: names of alternatives do not."""
    for index, part in enumerate(location):
        last = index == len(location) - 1
        if isinstance(content, dict) and (part in content or (last and missing)):
            content = content.get(part)
        elif isinstance(content, list) and isinstance(part, int) and part < len(content):
            content = content[part]
        else:
            continue
        yield part


def _line(location: Path, text: YamlText) -> int:
    """The line of a place, or of what is around it where it is not written itself."""
    while location and location not in text.lines:
        location = location[:-1]
    return text.lines.get(location, 0)


def _among_its_fields(message: str, location: Path, text: YamlText) -> tuple[Path, str]:
    """Put a contradiction between fields where one of them is written, and say where the others are.

    Such a sentence names the fields, or the words that are written in them; that is how they are found.
    """
    named = _named(message, location, text)
    if not named:
        return location, message
    line = _line(named[0], text)
    others = [f"{path[-1]} in line {_line(path, text)}" for path in named[1:] if _line(path, text) != line]
    return named[0], f"{message} ({', '.join(others)})" if others else message


def _named(message: str, location: Path, text: YamlText) -> list[Path]:
    """Fields below `location` that a sentence names; those that can be nothing but a field before plain words."""
    depth = len(location)
    below = [path for path in text.lines if len(path) > depth and path[:depth] == location]
    fields = [path for path in below if isinstance(path[-1], str)]
    sure: list[Path] = []
    perhaps: list[Path] = []
    for token in _WORD.findall(message):
        word = token.removeprefix("`")
        found = next((path for path in fields if _ends_with(path, word)), None)
        if found is None and len(word) > 3:
            found = next((path for path in fields if text.words.get(path) == word), None)
        if found is not None:
            (sure if token[0] == "`" or "_" in word or "." in word else perhaps).append(found)
    return list(dict.fromkeys(sure or perhaps))


def _ends_with(path: Path, word: str) -> bool:
    return f".{'.'.join(map(str, path))}".endswith(f".{word}")
