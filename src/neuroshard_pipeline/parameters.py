"""The base class of parameters, and a type of names."""

import re
from collections.abc import Collection
from typing import Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationInfo, field_validator, model_validator


class Parameters(BaseModel):
    """Parameters as `conf/` states them. Values cannot be changed afterwards.

    An unknown name, an infinite number, `true` or `false` in place of a number, and `min_x` above `max_x` are refused.
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

    @model_validator(mode="after")
    def _refuse_empty_ranges(self) -> Self:
        for name in (name for name in type(self).model_fields if name.startswith("min_")):
            low, most = getattr(self, name), f"max_{name.removeprefix('min_')}"
            if most in type(self).model_fields and low > getattr(self, most):
                raise ValueError(f"{name} {low} must be at most {most} {getattr(self, most)}")
        return self


def one_of(names: Collection[str]) -> AfterValidator:
    """The rule that a parameter is one of `names`."""

    def check(name: str) -> str:
        if name not in names:
            raise ValueError(f"use one of {', '.join(names)}")
        return name

    return AfterValidator(check)
