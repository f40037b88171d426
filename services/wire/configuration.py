"""Reading a service's configuration file."""

from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import AfterValidator, BeforeValidator, ValidationError, ValidationInfo

from parley.spec.mistakes import Problem, explained
from parley.spec.section import Section
from parley.spec.yaml_text import NotYaml, read_yaml
from parley.tables.places import is_store, refuse_secrets

Config = TypeVar("Config", bound=Section)


def _from_file(path: Path, info: ValidationInfo) -> Path:
    directory: Path = (info.context or {}).get("directory", Path())
    return directory / path.expanduser()


FilePath = Annotated[Path, AfterValidator(_from_file)]
"""A path in a configuration file, relative to the file's directory."""


def _place(text: str, info: ValidationInfo) -> str:
    if is_store(text):
        refuse_secrets(text)
        return text
    return str(_from_file(Path(text), info))


def _text(value: object) -> object:
    return str(value) if isinstance(value, Path) else value


TablePath = Annotated[str, BeforeValidator(_text), AfterValidator(_place)]
"""A file, a folder, a pattern of files, or a URL of an object store."""


class ConfigInvalid(ValueError):
    """The configuration file cannot be used."""

    def __init__(self, *mistakes: str) -> None:
        super().__init__("; ".join(mistakes))
        self.mistakes = mistakes


def load_config(path: Path, kind: type[Config]) -> Config:
    """Read and validate a configuration file; relative paths in it start at the file's directory.

    Raises:
        ConfigInvalid: with the line of every mistake.
    """
    try:
        read = read_yaml(path.read_text(encoding="utf-8"), what="configuration", aliases=True)
        return kind.model_validate(read.content, context={"directory": path.resolve().parent})
    except OSError as error:
        raise ConfigInvalid(f"{path} cannot be read ({error.strerror}): name a file with --config") from None
    except UnicodeDecodeError as error:
        raise ConfigInvalid(
            f"{path} is not UTF-8 text ({error.reason} at byte {error.start}): save it as UTF-8"
        ) from None
    except NotYaml as refusal:
        problems = [Problem(refusal.field, refusal.line, str(refusal))]
    except ValidationError as error:
        problems = explained(error, kind, read)
    raise ConfigInvalid(*(f"{path}:{_placed(problem)}" for problem in problems))


def _placed(problem: Problem) -> str:
    line = f"{problem.line}:" if problem.line else ""
    return " ".join(filter(None, [line, f"{problem.field}:" if problem.field else "", problem.message]))
