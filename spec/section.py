"""What every section of a spec has in common."""

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict


def _one_as_list(value: Any) -> Any:
    return [value] if isinstance(value, int) and not isinstance(value, bool) else value


Widths = Annotated[tuple[int, ...], BeforeValidator(_one_as_list)]
"""Widths of layers; a single one may be written as a number."""


class Section(BaseModel):
    """A section of the spec: unknown fields are refused, no number is infinite, and nothing changes after parsing."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)
