"""What every section of a spec has in common."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A section of the spec: unknown fields are refused, no number is infinite, and nothing changes after parsing."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)
