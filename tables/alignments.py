"""Alignments that an organisation has stored: which of its rows all parties of a run have, by name."""

import dataclasses
import json
import os
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from parley.tables.id_lists import PIECE
from parley.tables.identities import Duplicates, RowChoice

DIRECTORY = "alignments"


class AlignmentUnknown(LookupError):
    """No alignment of that name is stored here, or it is of another table."""


class AlignmentTaken(ValueError):
    """There is an alignment of that name already."""


class AlignmentDamaged(ValueError):
    """A stored alignment cannot be read."""


@dataclass(frozen=True)
class Alignment:
    """Rows of one table that every organisation has, as one of them stores them."""

    name: str
    table: str
    coordinator: str
    """Whose alignment it is: another coordinator may not use or replace it."""
    parties: tuple[str, ...]
    duplicates: Duplicates
    digest: str
    """SHA-256 over the ids, the same at every organisation."""
    ids: Sequence[str] = field(repr=False)
    """Canonical, sorted as text; tables put their rows in order themselves."""
    created: float = field(default_factory=time.time)
    """Unix seconds."""

    @property
    def choice(self) -> RowChoice:
        """The rows to load."""
        return RowChoice(tuple(self.ids), self.duplicates)


@dataclass(frozen=True)
class AlignmentStore:
    """Alignments as files under a service's state directory."""

    state: Path

    @property
    def directory(self) -> Path:
        """Where the files are."""
        return self.state / DIRECTORY

    @property
    def unfinished(self) -> Path:
        """Where alignments are kept that have not ended."""
        return self.directory / "unfinished"

    def has(self, name: str) -> bool:
        """Whether there is an alignment of that name."""
        return self._path(name).exists()

    def save(self, alignment: Alignment) -> None:
        """Write and sync an alignment, whole or not at all."""
        self.directory.mkdir(parents=True, exist_ok=True)
        path = self._path(alignment.name)
        scratch = path.with_suffix(".partial")
        with os.fdopen(os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            # The ids last and a few at a time: all of them as texts would take a hundred bytes each.
            fields = {each.name: getattr(alignment, each.name) for each in dataclasses.fields(alignment)}
            ids = fields.pop("ids")
            file.write(json.dumps(fields, ensure_ascii=False)[: -len("}")] + ', "ids": [')
            for first in range(0, len(ids), PIECE):
                piece = json.dumps(list(ids[first : first + PIECE]), ensure_ascii=False)
                file.write((", " if first else "") + piece[1:-1])
            file.write("]}")
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
        directory = os.open(self.directory, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def load(self, name: str, table: str, coordinator: str, others: Collection[str] = ()) -> Alignment:
        """The alignment of that name, if it is of this table, or of one of the others, and this coordinator made it."""
        if not self.has(name):
            raise AlignmentUnknown(
                f"no alignment {name!r} is stored here: make it with `parley align --table {table} --name {name}`, or "
                "leave `alignment` out of the spec"
            )
        found = self._read(name)
        if found.table not in (table, *others) or found.coordinator != coordinator:
            raise AlignmentUnknown(
                f"alignment {name!r} is of table {found.table!r}, made by {found.coordinator}: not for table {table!r} "
                f"of {coordinator}"
            )
        return found

    def refuse_others(self, name: str, coordinator: str) -> None:
        """Refuse a name under which another coordinator has stored an alignment."""
        if self.has(name) and self._read(name).coordinator != coordinator:
            raise AlignmentTaken(f"another coordinator has an alignment {name!r} here: choose another name")

    def _read(self, name: str) -> Alignment:
        try:
            content = json.loads(self._path(name).read_text(encoding="utf-8"))
            return Alignment(**content | {key: tuple(content[key]) for key in ("ids", "parties")})
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise AlignmentDamaged(
                f"alignment {name!r} cannot be read ({type(error).__name__}): delete its file and align again"
            ) from None

    def _path(self, name: str) -> Path:
        return self.directory / f"{name}.json"
