"""How a cost is timed: one documented type, so that no two numbers of a campaign mean different things."""

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
        forward_ms: forward cost of the visit, NaN where it failed.
        backward_ms: backward cost of the visit, NaN where it failed.
        probe_ms: forward + backward of the reference probe timed last before it.
        seconds: what the visit took in all.
        error: why it failed, or None.
    """

    forward_ms: float
    backward_ms: float
    probe_ms: float
    seconds: float
    error: str | None

    @classmethod
    def failed(cls, error: str) -> Timing:
        """A visit that brought its worker down."""
        return cls(math.nan, math.nan, math.nan, 0.0, error)


class TimingProtocol(BaseModel):
    """The timing protocol of a campaign.

    A campaign visits every sample `visits` times (or fewer, where a campaign's parameters say so), in an order shuffled
    anew for every round of visits, so that the visits of one sample lie as far apart as the campaign allows and a slow
    minute of the machine hits a little of every sample instead of all of one. One visit runs `warmup_iterations`
    untimed iterations and then `iterations` timed ones. Forward and backward are timed and reduced apart.

    Attributes:
        visits: rounds of visits over the whole campaign.
        warmup_iterations: untimed iterations at the start of a visit; they bring ids and code into the caches.
        iterations: timed iterations of a visit.
        iteration_statistic: how the timed iterations of a visit become its cost. `min` for compute on one core,
            where whatever disturbs an iteration only adds time. `median` for collectives, whose ranks share cores
            and take turns in an order that differs from run to run: the smallest is a lucky order, not the cost.
        visit_statistic: how the visits of a sample become its cost. `lower_quartile`: below what disturbs some
            visits, yet carried by several of them; costs of one core scatter both ways, as their rows lie elsewhere at
            every visit, and the smallest of many is a lucky place. `min`: right where whatever disturbs a visit
            only adds time. `median`: for devices whose clock moves both ways.
        cache_treatment: what the CPU's caches hold of the weights when an iteration starts. `cold_rows`: the
            weights move to another place of a large arena before every iteration, so every row comes from memory,
            as in training, where a new batch and the rest of the model pass through the caches in between.
            `warm`: nothing moves, repeats find in the caches what fits there. Collectives are always `warm`: what
            they send was written just before.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    visits: int = Field(ge=1, le=1000)
    warmup_iterations: int = Field(ge=0, le=1000)
    iterations: int = Field(ge=1, le=1000)
    iteration_statistic: Literal["min", "median"]
    visit_statistic: VisitStatistic
    cache_treatment: Literal["cold_rows", "warm"]

    def of_visit(self, timed_ms: Sequence[tuple[float, float]]) -> tuple[float, float]:
        """Forward and backward cost of a visit from those of its timed iterations."""
        reduce = np.min if self.iteration_statistic == "min" else np.median
        forward_ms, backward_ms = reduce(np.asarray(timed_ms), axis=0).tolist()
        return forward_ms, backward_ms
