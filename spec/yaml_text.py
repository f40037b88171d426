"""YAML text with the line of everything that is written in it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

Path = tuple[str | int, ...]
"""Where something is written: keys and positions from the top."""
DEEPEST_NESTING = 32
_UNREADABLE = (yaml.YAMLError, ValueError, TypeError, OverflowError, RecursionError)


class NotYaml(ValueError):
    """The text is not YAML, or not YAML that may be written here."""

    def __init__(self, problem: str, line: int = 0, field: str = "") -> None:
        super().__init__(problem)
        self.line, self.field = line, field


@dataclass(frozen=True)
class YamlText:
    """A mapping, and where its parts are written."""

    content: dict[Any, Any]
    lines: Mapping[Path, int]
    """The line of each key, or of each item of a list; from 1."""
    words: Mapping[Path, str]
    """What is written as each plain value."""


class _Loader(yaml.SafeLoader):
    """Safe YAML without endless nesting."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._depth = getattr(self, "_depth", 0) + 1
        if self._depth > DEEPEST_NESTING:
            raise self._refused("nested too deeply")
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def _refused(self, problem: str) -> yaml.MarkedYAMLError:
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        return yaml.MarkedYAMLError(problem=problem, problem_mark=mark)


class _PlainLoader(_Loader):
    """And without aliases, which can blow a short text up."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise self._refused("aliases are not allowed in a spec")
        return super().compose_node(parent, index)


def read_yaml(text: str, *, what: str, aliases: bool) -> YamlText:
    """Read a mapping.

    Raises:
        NotYaml: if it is none, or has a key twice, or aliases where they are not allowed.
    """
    loader = _Loader if aliases else _PlainLoader
    try:
        node = yaml.compose(text, Loader=loader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        raise NotYaml(f"not YAML: {error.problem}", line) from None
    except _UNREADABLE as error:
        raise NotYaml(f"not YAML: {error}") from None
    if not isinstance(node, yaml.MappingNode):
        raise NotYaml(f"a {what} is a mapping of fields, such as `name: something`", 1)
    for path, key in _duplicates(node, ()):
        raise NotYaml("written twice; keep one", key.start_mark.line + 1, ".".join(map(str, path)))
    try:
        content = yaml.load(text, Loader=loader)  # noqa: S506 (a SafeLoader)
    except _UNREADABLE as error:
        raise NotYaml(f"not YAML that a {what} may hold: {error}") from None
    written = list(_written(node, (), ()))
    lines = {path: line for path, line, _ in reversed(written)}
    return YamlText(content, lines, {path: word for path, _, word in written if word is not None})


def _duplicates(node: yaml.Node, path: Path, inside: tuple[int, ...] = ()) -> Iterator[tuple[Path, yaml.Node]]:
    if id(node) in inside:  # an anchor that holds itself
        return
    for key, part, value in _parts(node):
        if key is not None and sum(other.value == key.value for other, _ in node.value) > 1:
            yield (*path, part), [other for other, _ in node.value if other.value == key.value][1]
        yield from _duplicates(value, (*path, part), (*inside, id(node)))


def _written(node: yaml.Node, path: Path, inside: tuple[int, ...]) -> Iterator[tuple[Path, int, str | None]]:
    if not path:
        yield path, node.start_mark.line + 1, None
    if id(node) in inside:
        return
    for key, part, value in _parts(node):
        here = (*path, part)
        word = str(value.value) if isinstance(value, yaml.ScalarNode) else None
        yield here, (key or value).start_mark.line + 1, word
        yield from _written(value, here, (*inside, id(node)))


def _parts(node: yaml.Node) -> Iterator[tuple[yaml.Node | None, str | int, yaml.Node]]:
    """Key (of a mapping), name or position, and value of each part."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield key, str(key.value), value
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield None, index, value
