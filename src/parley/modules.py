"""Experiments and benchmarks: modules that appear in the command by being there."""

import importlib
import importlib.util
import json
import math
import pkgutil
from pathlib import Path
from types import ModuleType
from typing import Any

Rows = list[dict[str, Any]]


class ModuleRefused(LookupError):
    """There is no such experiment or benchmark here."""


def module_name(package: str, name: str) -> str:
    """The module behind a name, such as parley.experiments.bambi_toy behind bambi-toy."""
    return f"{package}.{name.replace('-', '_')}"


def is_there(package: str, name: str) -> bool:
    """Whether the module of a name exists; it is not imported."""
    try:
        return importlib.util.find_spec(module_name(package, name)) is not None
    except ModuleNotFoundError:  # the package itself is not installed
        return False


def names_in(package: str) -> list[str]:
    """The names of every module of a package."""
    found = importlib.util.find_spec(package)
    places = list(found.submodule_search_locations or ()) if found is not None else []
    return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(places))


def load(package: str, name: str, offered: list[str]) -> ModuleType:
    """Import the module of an offered name.

    Raises:
        ModuleRefused: with the names that there are.
    """
    if name not in offered:
        known = ", ".join(offered) or "none is installed"
        raise ModuleRefused(f"there is no {name!r} in {package.removeprefix('parley.')}: choose one of {known}")
    return importlib.import_module(module_name(package, name))


def write_rows(path: Path, name: str, rows: Rows, **circumstances: Any) -> None:
    """Write rows as JSON, and under which circumstances they came about.

    What is not a finite number is written as null, since JSON has no such numbers.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    plain = [{key: _plain(value) for key, value in row.items()} for row in rows]
    content = {"name": name, **circumstances, "rows": plain}
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def _plain(value: Any) -> Any:
    if isinstance(value, bool | int | str) or value is None:
        return value
    try:
        number = float(value)  # also numpy's scalars
    except (TypeError, ValueError):
        return str(value)
    return number if math.isfinite(number) else None
