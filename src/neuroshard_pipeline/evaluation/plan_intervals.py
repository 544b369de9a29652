"""How sure the predicted costs of plans are: a 90 % interval for every part of the cost of every rank.

Shapes: W ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from neuroshard_pipeline.cost_models import CostModels
from neuroshard_pipeline.search.plan import Plan, PlanCost

FloatArray = NDArray[np.float64]

PARTS = ("compute", "forward_comm", "backward_comm")
BOUND_COLUMNS = [f"{bound}_{part}_ms" for part in PARTS for bound in ("low", "high")]


def plan_intervals_frame(plans: Sequence[Plan], models: CostModels) -> pd.DataFrame:
    """`search.plan_intervals`: `task_id, sharder, rank`, and `low_` and `high_` of every part, in ms.

    The forward collective's interval takes the predicted start skews as given. Plans without a predicted cost are
    left out; an empty rank computes surely nothing.
    """
    frames = []
    for plan in plans:
        if plan.predicted is None:
            continue
        keys = {"task_id": plan.task.task_id, "sharder": plan.sharder, "rank": np.arange(plan.task.world_size)}
        bounds = _bounds(plan, plan.predicted, models)
        columns = {f"{name}_{part}_ms": bounds[part][:, side] for part in PARTS for side, name in enumerate(_SIDES)}
        frames.append(pd.DataFrame({**keys, **columns}))
    if not frames:
        return pd.DataFrame(columns=["task_id", "sharder", "rank", *BOUND_COLUMNS])
    return pd.concat(frames, ignore_index=True)


_SIDES = ("low", "high")


def _bounds(plan: Plan, predicted: PlanCost, models: CostModels) -> dict[str, FloatArray]:
    """Per part, the bounds of every rank: (W, 2)."""
    batch_size, dim_sums = plan.task.batch_size, np.array(plan.dim_sums)
    ready_ms = np.array(predicted.compute_ms) + np.array(predicted.backward_comm_ms)
    return {
        "compute": models.compute.interval(plan.shards_by_rank, batch_size),
        "forward_comm": models.comm.forward_interval_ms(dim_sums, ready_ms - ready_ms.min(), batch_size),
        "backward_comm": models.comm.backward_interval_ms(dim_sums, batch_size),
    }
