"""Tables that lie in several files: a folder, a pattern, or a place in an object store (s3://, gs://, abfs://).

Credentials of an object store come from the environment or from the files that its own tools read (AWS_…, GOOGLE_…,
AZURE_…), never from the place itself: a place is written to logs and messages, and one with a password is refused.
"""

import glob
import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import fs

from parley.tables.errors import TableError, TableNotFound, TableUnreadable, UnknownTableFormat

STORES = ("s3", "gs", "gcs", "abfs", "abfss")
_OPTIONS = {"region", "endpoint_override", "scheme", "allow_bucket_creation", "anonymous"}
_PATTERN = re.compile(r"[*?\[]")
_SUFFIXES = {".parquet": "parquet", ".pq": "parquet", ".csv": "csv"}
_SECRETS = re.compile(r"SECRET|TOKEN|PASSWORD|ACCESS_KEY|ACCOUNT_KEY|CREDENTIAL")


def is_store(place: str) -> bool:
    """Whether a place is a URL of an object store."""
    return urlsplit(place).scheme in STORES


def is_several(place: str) -> bool:
    """Whether a place may hold more than one file, or none on this machine."""
    return is_store(place) or Path(place).is_dir() or (bool(_PATTERN.search(place)) and not Path(place).is_file())


def refuse_secrets(place: str) -> None:
    """Refuse a URL with a user, a password or options that could hold one.

    Raises:
        ValueError: that does not quote the URL.
    """
    url = urlsplit(place)
    options = {name for name, _ in parse_qsl(url.query, keep_blank_values=True)}
    if url.password is not None or (url.username is not None and not url.scheme.startswith("abfs")):
        raise ValueError("`path` holds a key: leave it out, and set the store's own variables (such as AWS_PROFILE)")
    if options - _OPTIONS:
        raise ValueError(f"`path` has options that are not known here: use only {', '.join(sorted(_OPTIONS))}")


@dataclass(frozen=True)
class Place:
    """Where a table lies that may be many files."""

    text: str
    """A folder, a pattern or a URL."""

    def __str__(self) -> str:
        """What messages call it: without options."""
        return self.text.partition("?")[0] if is_store(self.text) else self.text

    @property
    def name(self) -> str:
        """A short name, as a file has one."""
        return str(self).rstrip("/").rpartition("/")[2]


@dataclass(frozen=True)
class PlacedFile:
    """One file of a place."""

    path: str
    size: int
    stamp: str
    """Of its last change."""


@dataclass(frozen=True)
class Files:
    """The files that a place holds now, in order of their names: rows come in this order."""

    place: Place
    system: fs.FileSystem
    files: tuple[PlacedFile, ...]
    kind: str
    """`csv` or `parquet`."""

    @property
    def digest(self) -> str:
        """Changes when a file is added, removed or written."""
        lines = (f"{file.path}\0{file.size}\0{file.stamp}\0" for file in self.files)
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    @property
    def paths(self) -> list[str]:
        """Of each file."""
        return [file.path for file in self.files]

    def dataset(self, kind: ds.FileFormat) -> ds.Dataset:
        """All of them under one schema, that of the first."""
        return ds.dataset(self.paths, filesystem=self.system, format=kind)


def find_files(place: Place, given: str | None) -> Files:
    """Look what a place holds; `given` is the configured format."""
    system, found = _listed(place)
    kinds = {_kind(file.path) for file in found} - {None}
    kind = given or (kinds.pop() if len(kinds) == 1 else None)
    if kind not in ("csv", "parquet"):
        raise UnknownTableFormat(
            place, "its files are not all CSV, or all Parquet", "Name a folder or a pattern of one sort"
        )
    chosen = tuple(file for file in found if _kind(file.path) == kind or (given and _kind(file.path) is None))
    if not chosen:
        raise TableNotFound(place, f"there are no {kind} files", "Check `path` in the configuration")
    return Files(place, system, chosen, str(kind))


def changed(place: Place) -> int:
    """Changes when the files of a place do; 0 if they cannot be listed."""
    try:
        system, found = _listed(place)
    except TableError:
        return 0
    return int(Files(place, system, found, "").digest[:15], 16)


def _kind(path: str) -> str | None:
    return _SUFFIXES.get(os.path.splitext(path)[1].lower())


def _listed(place: Place) -> tuple[fs.FileSystem, tuple[PlacedFile, ...]]:
    if is_store(place.text):
        return _stored(place)
    local = fs.LocalFileSystem()
    if Path(place.text).is_dir():
        names = [str(path) for path in Path(place.text).rglob("*") if path.is_file()]
    else:
        names = [name for name in glob.glob(place.text, recursive=True) if os.path.isfile(name)]
    visible = sorted(name for name in names if not os.path.basename(name).startswith(("_", ".")))
    if not visible:
        raise TableNotFound(place, "there are no files", "Check `path` in the configuration")
    return local, tuple(_local(name) for name in visible)


def _local(name: str) -> PlacedFile:
    found = os.stat(name)
    return PlacedFile(name, found.st_size, str(found.st_mtime_ns))


def _stored(place: Place) -> tuple[fs.FileSystem, tuple[PlacedFile, ...]]:
    """Files of an object store: one object, all under a prefix, or those that a pattern fits."""
    address, _, options = place.text.partition("?")
    scheme, _, rest = address.partition("://")
    fixed = _PATTERN.split(rest)[0]
    fixed = rest if fixed == rest else fixed.rpartition("/")[0]
    try:
        system, root = fs.FileSystem.from_uri(f"{scheme}://{fixed}{'?' + options if options else ''}")
        first = system.get_file_info(root)
        if first.type == fs.FileType.File:
            infos = [first]
        else:
            infos = system.get_file_info(fs.FileSelector(root, recursive=True, allow_not_found=True))
    except (OSError, pa.ArrowException) as failure:
        raise unreachable(place, failure) from None
    wanted = None if fixed == rest else re.compile(_regex(rest))
    files = sorted(
        (info for info in infos if info.type == fs.FileType.File and not info.base_name.startswith(("_", "."))),
        key=lambda info: info.path,
    )
    found = tuple(
        PlacedFile(info.path, info.size, str(info.mtime_ns))
        for info in files
        if wanted is None or wanted.fullmatch(info.path)
    )
    if not found:
        raise TableNotFound(place, "there are no files", "Check `path` in the configuration")
    return system, found


def _regex(pattern: str) -> str:
    """A pattern as a regular expression: `*` and `?` stay within a folder, `**/` goes through several."""
    parts = {"**/": "(?:.*/)?", "*": "[^/]*", "?": "[^/]"}
    return "".join(parts.get(part, re.escape(part)) for part in re.split(r"(\*\*/|\*|\?)", pattern))


def unreachable(place: Place, failure: Exception) -> TableUnreadable:
    """What went wrong at a store, without anything that its environment keeps secret."""
    text = " ".join(str(failure).split())[:300]
    for secret in _environment_secrets():
        text = text.replace(secret, "***")
    return TableUnreadable(
        place,
        f"it cannot be read ({text})",
        "Check `path`, and the credentials in the environment where the service starts",
    )


def _environment_secrets() -> Iterator[str]:
    for name, value in os.environ.items():
        if _SECRETS.search(name) and len(value) >= 4:
            yield value
