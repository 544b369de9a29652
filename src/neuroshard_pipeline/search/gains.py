"""Predicted gains from one plan to another, and how sure they are."""

from collections.abc import Mapping

import numpy as np

from neuroshard_pipeline.search.models import Models
from neuroshard_pipeline.search.parts import step_parts
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.search.price import part_offsets_ms

#: By part of a step, its ms on the slowest rank, and half the width of its 90 % interval as a share.
SlowestParts = Mapping[str, tuple[float, float]]

#: The part of a relative error that two plans do not share, set so that nine of ten gains that two ranks measured are
#: in their intervals (benchmarks/advice/bench_advice.py gains).
_OWN_ERROR = 1 / 3


def slowest_parts(plan: Plan, models: Models, share: float = 1.0) -> SlowestParts:
    """The parts of a share of a step; empty if the plan has no predicted cost."""
    cost = plan.predicted
    if cost is None:
        return {}
    rank = int(np.argmax(cost.rank_ms))
    parts = step_parts(plan.task, plan.shards, plan.ranks, models, bounded=True)
    offsets = part_offsets_ms(parts, cost, models, plan.task.batch_size)
    own = {part: (getattr(cost, f"{part}_ms")[rank], float(of[rank].mean())) for part, of in offsets.items()}
    return {part: (share * ms, half / ms if ms > 0 else 0.0) for part, (ms, half) in own.items()}


def gain_half_ms(before: SlowestParts, after: SlowestParts) -> float:
    """Half the width of the 90 % interval of a gain.

    Each part has an error that is the same share before and after, and one of its own, which is smaller (`_OWN_ERROR`).
    """
    total, none = 0.0, (0.0, 0.0)
    for part in {*before, *after}:
        (old, *shares), (new, *others) = before.get(part, none), after.get(part, none)
        total += max(*shares, *others) ** 2 * ((old - new) ** 2 + _OWN_ERROR**2 * (old**2 + new**2))
    return float(np.sqrt(total))
