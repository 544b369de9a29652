"""The base class of parameters."""

from pydantic import BaseModel, ConfigDict


class Parameters(BaseModel):
    """Parameters as `conf/` states them: an unknown name is refused, and values cannot be changed afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True)
