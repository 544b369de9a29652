"""90 % prediction intervals of every part (`totals.PARTS`) of the cost of every rank of plans."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from neuroshard_pipeline.arrays import FloatArray
from neuroshard_pipeline.cost_models import CostModels
from neuroshard_pipeline.evaluation.totals import PARTS, predicted_parts_ms
from neuroshard_pipeline.search.parts import step_parts
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.search.price import part_offsets_ms

BOUND_COLUMNS = [f"{end}_{part}_ms" for part in PARTS for end in ("low", "high")]


def plan_intervals_frame(plans: Sequence[Plan], models: CostModels) -> pd.DataFrame:
    """`search.plan_intervals`: `task_id, sharder, rank`, and `low_<part>_ms, high_<part>_ms` of every part.

    The interval of `forward_comm` assumes the predicted start skews. Plans without a predicted cost are left
    out. The compute interval of an empty rank is [0, 0]. Bounds of parts that a plan does not have are null.
    """
    frames = []
    for plan in plans:
        if plan.predicted is None:
            continue
        keys = {"task_id": plan.task.task_id, "sharder": plan.sharder, "rank": np.arange(plan.task.world_size)}
        parts = step_parts(plan.task, plan.shards, plan.ranks, models, bounded=True)
        offsets = part_offsets_ms(parts, plan.predicted, models, plan.task.batch_size)
        columns: dict[str, FloatArray] = dict.fromkeys(BOUND_COLUMNS, np.full(plan.task.world_size, np.nan))
        for part, ms in predicted_parts_ms(plan).items():
            low_ms, high_ms = (np.array(ms)[:, None] + offsets[part] * (-1.0, 1.0)).T
            columns |= {f"low_{part}_ms": low_ms, f"high_{part}_ms": high_ms}
        frames.append(pd.DataFrame({**keys, **columns}))
    names = ["task_id", "sharder", "rank", *BOUND_COLUMNS]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=names)
