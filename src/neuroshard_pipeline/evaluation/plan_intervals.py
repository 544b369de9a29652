"""90 % prediction intervals of the cost of every rank of plans, by part of the cost.

Shapes: W ranks.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.cost_models import CostModels
from neuroshard_pipeline.evaluation.totals import PARTS
from neuroshard_pipeline.search.plan import Plan, PlanCost
from neuroshard_pipeline.search.price import start_skew_ms

_ENDS = ("low", "high")
BOUND_COLUMNS = [f"{end}_{part}_ms" for part in PARTS for end in _ENDS]


def plan_intervals_frame(plans: Sequence[Plan], models: CostModels) -> pd.DataFrame:
    """`search.plan_intervals`: `task_id, sharder, rank`, and `low_<part>_ms, high_<part>_ms` of every part.

    The interval of the forward collective assumes the predicted start skews. Plans without a predicted cost are left
    out. The compute interval of an empty rank is [0, 0].
    """
    frames = []
    for plan in plans:
        if plan.predicted is None:
            continue
        keys = {"task_id": plan.task.task_id, "sharder": plan.sharder, "rank": np.arange(plan.task.world_size)}
        bounds = _bounds(plan, plan.predicted, models)
        columns = {f"{name}_{part}_ms": bounds[part][:, side] for part in PARTS for side, name in enumerate(_ENDS)}
        frames.append(pd.DataFrame({**keys, **columns}))
    if not frames:
        return pd.DataFrame(columns=["task_id", "sharder", "rank", *BOUND_COLUMNS])
    return pd.concat(frames, ignore_index=True)


def _bounds(plan: Plan, predicted: PlanCost, models: CostModels) -> dict[str, FloatArray]:
    """Lower and upper end of every rank (W, 2), by part."""
    batch_size, dim_sums = plan.task.batch_size, np.array(plan.dim_sums)
    skew_ms = start_skew_ms(predicted.compute_ms, predicted.backward_comm_ms)
    return {
        "compute": models.compute.interval(plan.shards_by_rank, batch_size),
        "forward_comm": models.comm.forward_interval_ms(dim_sums, skew_ms, batch_size),
        "backward_comm": models.comm.backward_interval_ms(dim_sums, batch_size),
    }
