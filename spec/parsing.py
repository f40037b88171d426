"""From YAML text to a spec, with the line of every mistake."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml
from pydantic import ValidationError

from parley.spec.run import RunSpec

LARGEST_TEXT = 1 << 20
DEEPEST_NESTING = 32


@dataclass(frozen=True)
class Problem:
    """A mistake in a spec: where it is and what to write instead."""

    field: str
    line: int
    message: str

    def __str__(self) -> str:
        place = f"line {self.line}: " if self.line else ""
        return f"{place}{self.field + ': ' if self.field else ''}{self.message}"


class SpecInvalid(ValueError):
    """A spec that cannot be run."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = problems


class _Loader(yaml.SafeLoader):
    """Safe YAML without aliases (they can blow up), duplicate keys or endless nesting."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise self._refused("aliases are not allowed in a spec")
        self._depth = getattr(self, "_depth", 0) + 1
        if self._depth > DEEPEST_NESTING:
            raise self._refused("nested too deeply")
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def _refused(self, problem: str) -> yaml.MarkedYAMLError:
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        return yaml.MarkedYAMLError(problem=problem, problem_mark=mark)


def parse_spec(text: str) -> RunSpec:
    """Parse and validate a spec.

    Raises:
        SpecInvalid: with every mistake, each with its field and line.
    """
    node = _compose(text)
    lines = dict(_lines(node, ()))
    content = _construct(text)
    try:
        return RunSpec.model_validate(content)
    except ValidationError as error:
        problems = [_explain(item, lines, content) for item in error.errors(include_url=False)]
    raise SpecInvalid(problems)


def check_spec(text: str) -> list[Problem]:
    """Every mistake of a spec; empty if it is right."""
    try:
        parse_spec(text)
    except SpecInvalid as invalid:
        return invalid.problems
    return []


def _compose(text: str) -> yaml.MappingNode:
    if len(text) > LARGEST_TEXT:
        raise SpecInvalid([Problem("", 0, f"a spec has at most {LARGEST_TEXT} characters; this one has {len(text)}")])
    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        raise SpecInvalid([Problem("", line, f"not YAML: {error.problem}")]) from None
    except yaml.YAMLError as error:
        raise SpecInvalid([Problem("", 0, f"not YAML: {error}")]) from None
    if not isinstance(node, yaml.MappingNode):
        raise SpecInvalid([Problem("", 1, "a spec is a mapping of fields, such as `name: my-run`")])
    duplicate = next(_duplicates(node), None)
    if duplicate:
        raise SpecInvalid([duplicate])
    return node


def _construct(text: str) -> Any:
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 (a SafeLoader)
    except (yaml.YAMLError, ValueError, TypeError, OverflowError) as error:
        raise SpecInvalid([Problem("", 0, f"not YAML that a spec may hold: {error}")]) from None


def _duplicates(node: yaml.Node) -> Iterator[Problem]:
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            name = str(key.value)
            if name in seen:
                yield Problem(name, key.start_mark.line + 1, "written twice; keep one")
            seen.add(name)
            yield from _duplicates(value)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from _duplicates(value)


def _lines(node: yaml.Node, path: tuple[str | int, ...]) -> Iterator[tuple[tuple[str | int, ...], int]]:
    yield path, node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield (*path, str(key.value)), key.start_mark.line + 1
            for inner, line in _lines(value, (*path, str(key.value))):
                if inner != (*path, str(key.value)):
                    yield inner, line
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield from _lines(value, (*path, index))


def _explain(item: Any, lines: dict[tuple[str | int, ...], int], content: Any) -> Problem:
    location = tuple(_written(item["loc"], content, item["type"] == "missing"))
    known = location
    while known and known not in lines:
        known = known[:-1]
    message = item["msg"].removeprefix("Value error, ")
    if item["type"] == "extra_forbidden":
        message = "no such field; see `parley run fields` for what can be written here"
    elif item["type"] == "missing":
        message = "missing; this field must be written"
    elif item["type"] == "union_tag_invalid":
        message = f"{item['ctx']['discriminator']} must be one of {item['ctx']['expected_tags']}"
    elif item["type"] == "union_tag_not_found":
        message = f"missing; {item['ctx']['discriminator']} must be written here"
    field = ".".join(map(str, location))
    return Problem(field, lines.get(known, 0) if known or not location else lines.get((), 0), message)


def _written(location: tuple[str | int, ...], content: Any, missing: bool) -> Iterator[str | int]:
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
