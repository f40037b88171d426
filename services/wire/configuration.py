"""Reading a service's configuration file."""

from pathlib import Path
from typing import Annotated, TypeVar

import yaml
from pydantic import AfterValidator, ValidationError, ValidationInfo

from parley.spec.section import Section

Config = TypeVar("Config", bound=Section)


def _from_file(path: Path, info: ValidationInfo) -> Path:
    directory: Path = (info.context or {}).get("directory", Path())
    return directory / path.expanduser()


FilePath = Annotated[Path, AfterValidator(_from_file)]
"""A path in a configuration file, relative to the file's directory."""


class ConfigInvalid(ValueError):
    """The configuration file cannot be used."""


def load_config(path: Path, kind: type[Config]) -> Config:
    """Read and validate a configuration file; relative paths in it start at the file's directory."""
    try:
        content = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigInvalid(f"{path} cannot be read ({error.strerror}): name a file with --config") from None
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise ConfigInvalid(f"{path} is not YAML: {error}") from None
    try:
        return kind.model_validate(content, context={"directory": path.resolve().parent})
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
        raise ConfigInvalid(f"{path}: " + "; ".join(lines)) from None
