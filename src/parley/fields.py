"""The documentation of specs and configurations, read off the models that validate them: it cannot fall behind."""

import re
import types
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from parley.spec.algorithms import AlgorithmSettings, installed
from parley.spec.run import RunSpec

_NAMES = {
    int: "whole number",
    float: "number",
    str: "text",
    bool: "true or false",
    type(None): "null",
    Path: "path",
    date: "date",
}
_BOUNDS = {annotated_types.Ge: ("ge", "≥"), annotated_types.Gt: ("gt", ">"), annotated_types.Le: ("le", "≤")}
_BOUNDS |= {annotated_types.Lt: ("lt", "<")}
_VARIANTS = re.compile(r"\([^)]*\)")


@dataclass(frozen=True)
class SpecField:
    """One field that a spec, or a service's configuration, may have."""

    path: str
    """Where it is written, such as train.lower.batch; `[]` stands for each item of a list, `NAME` for each name."""
    kind: str
    """What may be written there."""
    default: str
    """What holds if it is left out; `required` if it may not be."""
    meaning: str

    def is_in(self, section: str) -> bool:
        """Whether it belongs to `section`, such as train.lower; alternatives such as train(bambi) may be left out."""
        plain = _VARIANTS.sub("", self.path)
        return any(f"{path}.".startswith(f"{section}.") for path in (self.path, plain, plain.replace("[]", "")))


def spec_fields() -> list[SpecField]:
    """Every field of a run spec, in the order of the models."""
    return fields_of(RunSpec)


def fields_of(model: type[BaseModel]) -> list[SpecField]:
    """Every field of a model and of the sections in it."""
    return list(_walk(model, ""))


def _walk(model: type[BaseModel], prefix: str) -> Iterator[SpecField]:
    for name, field in model.model_fields.items():
        path = f"{prefix}{name}"
        sections = list(_sections(field.annotation))
        yield SpecField(path, _kind(field.annotation, field.metadata), _default(field), _meaning(field))
        for section, suffix in sections:
            variant = f"({_variant(section)})" if len(sections) > 1 else ""
            yield from _walk(section, f"{path}{suffix}{variant}.")


def _sections(annotation: Any) -> Iterator[tuple[type[BaseModel], str]]:
    """The models inside a type, and whether each stands in a list."""
    if annotation is AlgorithmSettings:
        yield from ((algorithm.settings, "") for algorithm in installed().values())
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation, ""
    elif get_origin(annotation) in (tuple, list):
        for section, suffix in _sections(get_args(annotation)[0]):
            yield section, f"[]{suffix}"
    elif get_origin(annotation) is dict:
        for section, suffix in _sections(get_args(annotation)[1]):
            yield section, f".NAME{suffix}"
    elif get_origin(annotation) is not Literal:
        for part in get_args(annotation):
            yield from _sections(part)


def _variant(section: type[BaseModel]) -> str:
    """What tells the alternatives of a field apart: the one word that its algorithm (or kind) may be."""
    tags = [section.model_fields[name] for name in ("algorithm", "kind") if name in section.model_fields]
    words = get_args(tags[0].annotation) if tags else ()
    return str(words[0]) if words else section.__name__


def _kind(annotation: Any, metadata: Any = ()) -> str:
    bounds = [f"{sign} {_number(getattr(item, name))}" for item in metadata for name, sign in _bounds(item)]
    kind, null, rest = _type(annotation).partition(" or null")
    return " ".join([kind, *bounds]) + null + rest


def _number(bound: float) -> str:
    return str(bound) if isinstance(bound, int) and abs(bound) < 10**9 else f"{bound:g}"


def _bounds(item: Any) -> Iterator[tuple[str, str]]:
    if type(item) in _BOUNDS:
        yield _BOUNDS[type(item)]


def _type(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(arguments[0])
    if origin is Literal:
        return " | ".join(map(str, arguments))
    if origin in (tuple, list):
        if len(arguments) > 1 and arguments[1] is not Ellipsis:
            return f"{len(arguments)} {_type(arguments[0])}s"
        return f"list of {_type(arguments[0])}s"
    if origin is dict:
        inner = _type(arguments[1])
        return "section for each name" if inner == "section" else f"{inner} for each name"
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(map(_type, arguments)))
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section"
    return _NAMES.get(annotation, str(annotation))


def _default(field: FieldInfo) -> str:
    default = field.get_default(call_default_factory=False)
    if default is PydanticUndefined:
        return "required"
    if isinstance(default, BaseModel):  # its own fields show their defaults; here is what this place changes
        changed = default.model_dump(exclude_defaults=True)
        return "{" + ", ".join(f"{name}: {value}" for name, value in changed.items()) + "}" if changed else ""
    if default is None:
        return "null"
    if isinstance(default, bool):
        return str(default).lower()
    return f"{default:g}" if isinstance(default, float) else str(default)


def _meaning(field: FieldInfo) -> str:
    return " ".join((field.description or "").split())
