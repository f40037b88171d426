"""A service's configuration file, whichever service it is for."""

from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from parley.services.wire.configuration import load_config

if TYPE_CHECKING:
    from parley.services.coordinator.config import CoordinatorConfig
    from parley.services.party.config import PartyConfig


def is_coordinators(path: Path) -> bool:
    """Whether a file configures a coordinator: only that has an address book."""
    try:
        fields = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return False  # reading it as a configuration says what is wrong with it
    return isinstance(fields, dict) and "parties" in fields


def load_service_config(path: Path) -> "PartyConfig | CoordinatorConfig":
    """Read the configuration of a party or of a coordinator. Images of one role have no code of the other."""
    if is_coordinators(path):
        from parley.services.coordinator.config import CoordinatorConfig

        return load_config(path, CoordinatorConfig)
    from parley.services.party.config import PartyConfig

    return load_config(path, PartyConfig)
