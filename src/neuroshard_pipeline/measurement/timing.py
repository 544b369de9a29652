"""The result of one visit."""

import math
from typing import NamedTuple, Self


class Timing(NamedTuple):
    """One visit of one sample on one rank.

    Attributes:
        forward_ms: forward cost, NaN if the visit failed.
        backward_ms: backward cost, NaN if the visit failed.
        seconds: duration of the whole visit.
        error: why the visit failed, or None.
    """

    forward_ms: float
    backward_ms: float
    seconds: float
    error: str | None

    @classmethod
    def failed(cls, error: str) -> Self:
        """The timing of a visit that killed its worker."""
        return cls(math.nan, math.nan, 0.0, error)
