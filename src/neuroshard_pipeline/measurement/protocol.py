"""How a cost is timed: one documented type, so that all costs of a campaign have the same meaning."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

VisitStatistic = Literal["lower_quartile", "min", "median"]


class Timing(NamedTuple):
    """One visit of one sample on one rank.

    Attributes:
        forward_ms: forward cost, NaN if the visit failed.
        backward_ms: backward cost, NaN if the visit failed.
        probe_ms: forward + backward cost of the reference probe that was timed last before this visit.
        seconds: duration of the whole visit.
        error: why the visit failed, or None.
    """

    forward_ms: float
    backward_ms: float
    probe_ms: float
    seconds: float
    error: str | None

    @classmethod
    def failed(cls, error: str) -> Timing:
        """A visit that killed its worker."""
        return cls(math.nan, math.nan, math.nan, 0.0, error)


class TimingProtocol(BaseModel):
    """The timing protocol of a campaign.

    A campaign visits every sample `visits` times (expensive samples fewer times if its parameters say so). Every round
    of visits has its own random order, so that the visits of one sample are spread over the whole campaign and a slow
    minute of the machine affects one visit of many samples instead of all visits of a few. One visit runs
    `warmup_iterations` untimed and then `iterations` timed iterations. Forward and backward are timed and reduced
    separately.

    Attributes:
        visits: rounds of visits in the campaign.
        warmup_iterations: untimed iterations at the start of a visit; they load ids and code into the caches.
        iterations: timed iterations of a visit.
        iteration_statistic: reduces the iterations of a visit to its cost. `min` suits lookups on one core, because
            disturbances only add time. `median` suits collectives: their ranks share cores and run in a different
            order every time, and the minimum would pick a lucky order.
        visit_statistic: reduces the visits of a sample to its cost. `lower_quartile` excludes disturbed visits but
            depends on several others. Repeated timings on one core vary in both directions, because each visit places
            the rows at a different address; `min` would pick a lucky address. `median` suits devices whose clock
            varies in both directions.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    visits: int = Field(ge=1, le=1000)
    warmup_iterations: int = Field(ge=0, le=1000)
    iterations: int = Field(ge=1, le=1000)
    iteration_statistic: Literal["min", "median"]
    visit_statistic: VisitStatistic

    def of_visit(self, timed_ms: Sequence[tuple[float, float]]) -> tuple[float, float]:
        """Forward and backward cost of a visit from its timed iterations."""
        reduce = np.min if self.iteration_statistic == "min" else np.median
        forward_ms, backward_ms = reduce(np.asarray(timed_ms), axis=0).tolist()
        return forward_ms, backward_ms
