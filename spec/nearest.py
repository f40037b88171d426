"""What was probably meant by a name that does not exist."""

import difflib
from collections.abc import Collection, Iterator
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from parley.spec.yaml_text import Path

_TAGS = ("algorithm", "kind")
"""Fields whose only allowed word tells the alternatives of a section apart."""
MOST_LISTED = 16


def nearest(word: str, known: Collection[str]) -> str | None:
    """The known name that is most like `word`; None if none is much like it."""
    plain = {name.lower().replace("-", "_"): name for name in known}
    spelled = word.lower().replace("-", "_")
    close = difflib.get_close_matches(spelled, plain, n=1, cutoff=0.6)
    if close:
        return plain[close[0]]
    longer = [name for name in plain if spelled.startswith(f"{name}_") or name.startswith(f"{spelled}_")]
    return plain[longer[0]] if len(longer) == 1 else None


def did_you_mean(word: str, known: Collection[str]) -> str:
    """A question to put behind a sentence; empty if nothing is like `word`."""
    found = nearest(word, known)
    return f": did you mean `{found}`?" if found is not None else ""


def unknown_field(name: str, kind: type[BaseModel], location: Path, content: Any) -> str:
    """What to say of a field that the section at `location` does not have."""
    here = list(_fields(kind, content, location))
    owners: dict[str, str] = getattr(kind, "elsewhere", {})
    if name in owners:
        return f"no such field: {owners[name]}"
    meant = nearest(name, here)
    if meant is not None:
        return f"no such field: did you mean `{meant}`?"
    homes = [".".join(path[:-1]) for path in _everywhere(kind, content, ()) if path[-1] == name and len(path) > 1]
    if 0 < len(homes) <= 3:
        return f"no such field here: it belongs in {' or '.join(f'`{home}`' for home in homes)}"
    listed = ", ".join(here[:MOST_LISTED]) + (", …" if len(here) > MOST_LISTED else "")
    return f"no such field; there are {listed}" if here else "no such field"


def _fields(kind: type[BaseModel], content: Any, location: Path) -> Iterator[str]:
    """Names of the fields of the section at `location`."""
    if not location:
        yield from kind.model_fields
        return
    part, rest = location[0], location[1:]
    field = kind.model_fields.get(str(part))
    inner = content.get(part) if isinstance(content, dict) else None
    if field is None:
        return
    if rest and (isinstance(inner, list) or _is_open(field.annotation)):  # one item of a list, or of named ones
        inner = inner[int(rest[0])] if isinstance(inner, list) else (inner or {}).get(rest[0])
        rest = rest[1:]
    section = _section(field.annotation, inner)
    if section is not None:
        yield from _fields(section, inner, rest)


def _everywhere(kind: type[BaseModel], content: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Paths of all fields, in the alternatives that `content` has chosen."""
    for name, field in kind.model_fields.items():
        yield (*path, name)
        inner = content.get(name) if isinstance(content, dict) else None
        section = None if _is_open(field.annotation) else _section(field.annotation, inner)
        if section is not None:
            yield from _everywhere(section, inner, (*path, name))


def _is_open(annotation: Any) -> bool:
    """Whether sections stand under names or in a list of the writer's own making."""
    return get_origin(annotation) in (dict, list, tuple)


def _section(annotation: Any, content: Any) -> type[BaseModel] | None:
    """The section that is written here: of several alternatives the one that its tag names."""
    sections = list(_sections(annotation))
    tags = {tag: content[tag] for tag in _TAGS if isinstance(content, dict) and tag in content}
    for section in sections:
        if any(_allows(section, tag, word) for tag, word in tags.items()):
            return section
    return sections[0] if len(sections) == 1 else None


def _sections(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        for special in annotation.__subclasses__():
            yield from _sections(special)
    elif get_origin(annotation) is not Literal:
        for part in get_args(annotation):
            yield from _sections(part)


def _allows(section: type[BaseModel], tag: str, word: Any) -> bool:
    field = section.model_fields.get(tag)
    return field is not None and get_args(field.annotation) == (word,)
