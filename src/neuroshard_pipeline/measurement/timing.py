"""The result of one visit, which is one measurement of one sample in a campaign."""

import math
from typing import NamedTuple, Self


class Timing(NamedTuple):
    """One visit of one sample on one rank.

    Attributes:
        forward_ms: forward cost, NaN if the visit failed or timed only the other direction.
        backward_ms: backward cost, NaN if the visit failed or timed only the other direction.
        seconds: duration of the whole visit.
        error: why the visit failed, or None.
        permanent: whether every later visit would fail in the same way, because the sample is invalid or too large for
            the campaign. Failures that may pass are not permanent: a lack of memory while another job uses it, a
            timeout, or a killed worker.
    """

    forward_ms: float
    backward_ms: float
    seconds: float
    error: str | None
    permanent: bool

    @classmethod
    def failed(cls, error: str) -> Self:
        """The timing of a visit whose worker died or hung, or that was left out."""
        return cls(math.nan, math.nan, 0.0, error, permanent=False)
