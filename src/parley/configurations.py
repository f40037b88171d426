"""A service's configuration file, whichever service it is for."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from parley.services.wire.configuration import ConfigInvalid, load_config

if TYPE_CHECKING:
    from parley.services.coordinator.config import CoordinatorConfig
    from parley.services.party.config import PartyConfig


def is_coordinators(path: Path) -> bool:
    """Whether a file configures a coordinator: only that has an address book."""
    fields = _fields(path)
    return "parties" in fields and not _is_relays(fields)


def is_relays(path: Path) -> bool:
    """Whether a file configures a relay: it keeps no state, reads no table, and names parties at most."""
    return _is_relays(_fields(path))


def _is_relays(fields: Mapping[str, Any]) -> bool:
    others = {"state", "tables", "labels", "policy", "connect"}
    return "identity" in fields and others.isdisjoint(fields) and isinstance(fields.get("parties", []), list)


def _fields(path: Path) -> Mapping[str, Any]:
    try:
        fields = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return {}  # reading it as a configuration says what is wrong with it
    return fields if isinstance(fields, dict) else {}


def load_service_config(path: Path) -> "PartyConfig | CoordinatorConfig":
    """Read the configuration of a party or of a coordinator. Images of one role have no code of the other."""
    if is_relays(path):
        raise ConfigInvalid(f"{path} configures a relay, which keeps no state: name a party's or a coordinator's file")
    if is_coordinators(path):
        from parley.services.coordinator.config import CoordinatorConfig

        return load_config(path, CoordinatorConfig)
    from parley.services.party.config import PartyConfig

    return load_config(path, PartyConfig)
