"""Adds up the costs of plans: step and paper's cost of every plan from the costs of its ranks.

The cost of a plan is its *step*: the time of one training step of the embedding modules on the slowest rank. A search
predicts it as the largest sum of a rank's parts (`PARTS`). A judge measures it as a whole (`evaluation.steps`), and
the parts of every rank beside it. The *paper's cost* [Zha2023] §2 has only lookups and collectives; `neuroshard`
minimises it. It is always called so.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from neuroshard_pipeline.evaluation.comparison import Basis
from neuroshard_pipeline.search.plan import Plan

#: Parts of the cost of a rank. Every plan has the first three. Another part is null if the plan does not have it, or
#: if the cost models do not price it.
PARTS = ("compute", "forward_comm", "backward_comm", "input_dist", "reduction", "module")
PARTS_OF_ALL = PARTS[:3]
#: Parts of the paper's cost. Reductions count, too, because row shards and replicas have them instead of all-to-alls.
PAPER_PARTS = (*PARTS_OF_ALL, "reduction")
PREDICTED_COLUMNS = [f"predicted_{part}_ms" for part in PARTS]
MEASURED_COLUMNS = [f"measured_{part}_ms" for part in PARTS]
#: The cost of the plan, the same in all of its rows.
STEP_COLUMNS = ["predicted_step_ms", "measured_step_ms"]

#: Columns of `search.plan_costs`: the three parts of [Zha2023] come first.
_COLUMNS = ["task_id", "sharder", "rank", "memory_bytes", *PREDICTED_COLUMNS[:3], *MEASURED_COLUMNS[:3]]
_COLUMNS += [*PREDICTED_COLUMNS[3:], *MEASURED_COLUMNS[3:], *STEP_COLUMNS]

#: The column of `plan_totals` by which plans are compared.
COST_COLUMNS: dict[Basis, str] = {"measured": "measured_step_ms", "predicted": "predicted_step_ms"}


def plan_costs_frame(plans: Sequence[Plan], measured: pd.DataFrame | None = None) -> pd.DataFrame:
    """`search.plan_costs`: one row per plan and rank with predicted and measured costs; missing costs are NaN.

    `measured` is as `steps.measured_costs` returns it, with some of `MEASURED_COLUMNS` and `measured_step_ms`.
    """
    frames = []
    for plan in plans:
        columns: dict[str, Any] = {
            "task_id": plan.task.task_id,
            "sharder": plan.sharder,
            "rank": np.arange(plan.task.world_size),
            "memory_bytes": np.array(plan.memory_bytes, dtype=np.int64),
            **dict.fromkeys([*PREDICTED_COLUMNS, *MEASURED_COLUMNS, *STEP_COLUMNS], np.nan),
            **{f"predicted_{part}_ms": np.array(ms) for part, ms in predicted_parts_ms(plan).items()},
            "predicted_step_ms": np.nan if plan.predicted is None else plan.predicted_cost_ms,
        }
        frames.append(pd.DataFrame(columns)[_COLUMNS])
    if not frames:
        return pd.DataFrame(columns=_COLUMNS)
    costs = pd.concat(frames, ignore_index=True)
    if measured is None or measured.empty:
        return costs
    keys = ["task_id", "sharder", "rank"]
    return costs.drop(columns=measured.columns.drop(keys)).merge(measured, on=keys, how="left")[_COLUMNS]


def predicted_parts_ms(plan: Plan) -> dict[str, tuple[float, ...]]:
    """Predicted cost of every rank by part, without the parts that the plan does not have."""
    cost = plan.predicted
    return {} if cost is None else {part: ms for part in PARTS if (ms := getattr(cost, f"{part}_ms"))}


def plan_totals(plan_costs: pd.DataFrame) -> pd.DataFrame:
    """Step and paper's cost of every plan in `search.plan_costs` or `benchmark.plan_costs`.

    Returns:
        One row per plan: `task_id, sharder, world_size`; `predicted_step_ms` and `measured_step_ms`; and
        `paper_cost_ms`, the largest predicted sum of `PAPER_PARTS` of a rank. Unknown costs are NaN.
    """
    keys = ["task_id", "sharder"]
    paper = plan_costs[[f"predicted_{part}_ms" for part in PAPER_PARTS]].astype(float)
    ranks = plan_costs[[*keys, *STEP_COLUMNS]].assign(
        paper_cost_ms=paper.sum(axis=1).mask(paper["predicted_compute_ms"].isna())
    )
    grouped = ranks.groupby(keys, sort=False, observed=True)
    totals = grouped.max().astype(float)
    totals.insert(0, "world_size", grouped.size())
    return totals.reset_index()


def basis_of(totals: pd.DataFrame) -> Basis:
    """The kind of cost by which plans are compared: `measured` if any plan was measured, `predicted` otherwise."""
    return "measured" if totals["measured_step_ms"].notna().any() else "predicted"


def cost_table(costs: pd.DataFrame, sharders: Sequence[str], column: str) -> pd.DataFrame:
    """Cost in ms by task (rows) and sharder (columns). A task without costs has no row; other gaps are NaN.

    Args:
        costs: the result of `plan_totals`, or rows of `benchmark.task_costs`.
        sharders: names and order of the columns.
        column: the cost, one of `measured_step_ms, predicted_step_ms, paper_cost_ms`.
    """
    wide = costs.pivot_table(index="task_id", columns="sharder", values=column, sort=False)
    return wide.reindex(columns=list(sharders))


def number(value: float) -> float | None:
    """The value for JSON, None unless it is finite."""
    return float(value) if np.isfinite(value) else None
