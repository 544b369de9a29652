"""The base class of parameters."""

import re
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator


class Parameters(BaseModel):
    """Parameters as `conf/` states them. Values cannot be changed afterwards.

    An unknown name, an infinite number, and `true` or `false` in place of a number are refused.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_flags_as_numbers(cls, value: Any, info: ValidationInfo) -> Any:
        kinds = set(re.findall(r"\w+", str(cls.model_fields[str(info.field_name)].annotation)))
        given = value if isinstance(value, list | tuple) else [value]
        if kinds & {"int", "float"} and "bool" not in kinds and any(isinstance(each, bool) for each in given):
            raise ValueError("must be a number, not true or false")
        return value
