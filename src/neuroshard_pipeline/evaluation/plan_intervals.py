"""90 % prediction intervals of the cost of every rank of plans, by part of the cost.

Shapes: W ranks.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from neuroshard_pipeline.cost_models import CostModels
from neuroshard_pipeline.evaluation.totals import PARTS
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.search.price import start_skew_ms

BOUND_COLUMNS = [f"{end}_{part}_ms" for part in PARTS for end in ("low", "high")]


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
        batch_size, dim_sums = plan.task.batch_size, np.array(plan.dim_sums)
        skew_ms = start_skew_ms(plan.predicted.compute_ms, plan.predicted.backward_comm_ms)
        ends = (
            models.compute.interval(plan.shards_by_rank, batch_size),
            models.comm.forward_interval_ms(dim_sums, skew_ms, batch_size),
            models.comm.backward_interval_ms(dim_sums, batch_size),
        )
        bounds = np.hstack(ends)  # (W, 6), in the order of BOUND_COLUMNS
        frames.append(pd.DataFrame({**keys, **dict(zip(BOUND_COLUMNS, bounds.T, strict=True))}))
    names = ["task_id", "sharder", "rank", *BOUND_COLUMNS]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=names)
