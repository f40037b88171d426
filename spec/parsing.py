"""From YAML text to a spec, with the line of every mistake."""

from pydantic import ValidationError

from parley.spec.mistakes import Problem, explained
from parley.spec.run import RunSpec
from parley.spec.yaml_text import NotYaml, read_yaml

LARGEST_TEXT = 1 << 20


class SpecInvalid(ValueError):
    """A spec that cannot be run."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = problems


def parse_spec(text: str) -> RunSpec:
    """Parse and validate a spec.

    Raises:
        SpecInvalid: with every mistake, each with its field and line.
    """
    if len(text) > LARGEST_TEXT:
        raise SpecInvalid([Problem("", 0, f"a spec has at most {LARGEST_TEXT} characters; this one has {len(text)}")])
    try:
        read = read_yaml(text, what="spec", aliases=False)
        return RunSpec.model_validate(read.content)
    except NotYaml as refusal:
        problems = [Problem(refusal.field, refusal.line, str(refusal))]
    except ValidationError as error:
        problems = explained(error, RunSpec, read)
    raise SpecInvalid(problems)


def check_spec(text: str) -> list[Problem]:
    """Every mistake of a spec; empty if it is right."""
    try:
        parse_spec(text)
    except SpecInvalid as invalid:
        return invalid.problems
    return []
