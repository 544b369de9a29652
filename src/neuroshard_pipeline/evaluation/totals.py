"""Adds up the costs of plans: embedding cost and imbalance of every plan from the costs of its ranks.

A plan has up to six parts of cost (`PARTS`). The stages that measure plans measure four of them (`MEASURED_PARTS`). The
other two, input dist and module, are work of TorchRec itself; for plans of sharders, only the pipeline `truth` measures
them, because it runs TorchRec. Predicted and measured totals are therefore compared over the four parts
(`predicted_ms`, `measured_ms`). The prediction over all parts is `step_ms`. `neuroshard_plus` minimises it, and plans
are compared by it if none is measured.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from neuroshard_pipeline.evaluation.comparison import Basis
from neuroshard_pipeline.search.plan import Plan

#: Parts of the cost of a rank. Every plan has the first three. Another part is null if the plan does not have it, or
#: if the cost models do not price it.
PARTS = ("compute", "forward_comm", "backward_comm", "input_dist", "reduction", "module")
PARTS_OF_ALL = PARTS[:3]
#: Parts that the stages `search` and `benchmark` measure.
MEASURED_PARTS = ("compute", "forward_comm", "backward_comm", "reduction")
PREDICTED_COLUMNS = [f"predicted_{part}_ms" for part in PARTS]
MEASURED_COLUMNS = [f"measured_{part}_ms" for part in PARTS]

#: Columns of `search.plan_costs`: the three parts of [Zha2023] come first.
_COLUMNS = ["task_id", "sharder", "rank", "memory_bytes", *PREDICTED_COLUMNS[:3], *MEASURED_COLUMNS[:3]]
_COLUMNS += [*PREDICTED_COLUMNS[3:], *MEASURED_COLUMNS[3:]]

#: The column of `plan_totals` by which plans are compared.
COST_COLUMNS: dict[Basis, str] = {"measured": "measured_ms", "predicted": "step_ms"}


def plan_costs_frame(
    plans: Sequence[Plan], measured_ms: Mapping[str, Sequence[Sequence[float]]] | None = None
) -> pd.DataFrame:
    """`search.plan_costs`: one row per plan and rank with predicted and measured costs; missing costs are NaN.

    Args:
        plans: plans of any tasks.
        measured_ms: `measured_ms[part][plan][rank]` of the parts that were measured.
    """
    frames = []
    for index, plan in enumerate(plans):
        columns: dict[str, Any] = {
            "task_id": plan.task.task_id,
            "sharder": plan.sharder,
            "rank": np.arange(plan.task.world_size),
            "memory_bytes": np.array(plan.memory_bytes, dtype=np.int64),
            **dict.fromkeys([*PREDICTED_COLUMNS, *MEASURED_COLUMNS], np.nan),
            **{f"predicted_{part}_ms": np.array(ms) for part, ms in predicted_parts_ms(plan).items()},
            **{f"measured_{part}_ms": np.array(ms[index]) for part, ms in (measured_ms or {}).items()},
        }
        frames.append(pd.DataFrame(columns)[_COLUMNS])
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=_COLUMNS)


def predicted_parts_ms(plan: Plan) -> dict[str, tuple[float, ...]]:
    """Predicted cost of every rank by part, without the parts that the plan does not have."""
    cost = plan.predicted
    return {} if cost is None else {part: ms for part in PARTS if (ms := getattr(cost, f"{part}_ms"))}


def plan_totals(plan_costs: pd.DataFrame) -> pd.DataFrame:
    """Embedding cost and imbalance of every plan.

    The cost of a rank is the sum of its parts. The embedding cost is the largest cost of a rank [Zha2023] §2.

    Args:
        plan_costs: `search.plan_costs` or `benchmark.plan_costs`; columns of optional parts may be missing.

    Returns:
        One row per plan: `task_id, sharder` (and `seed` if the input has it), `world_size`; `measured_ms` and
        `predicted_ms`, both over `MEASURED_PARTS`; `step_ms`, predicted over all parts that are priced; `imbalance`,
        the largest compute cost of a rank divided by the mean, minus 1 (measured if the plan was measured, predicted
        otherwise). A cost is NaN if any rank lacks compute or communication. A measured cost is also NaN if the plan
        has reductions that were not measured.
    """
    keys = [key for key in ("task_id", "sharder", "seed") if key in plan_costs]
    costs = plan_costs.reindex(columns=[*PREDICTED_COLUMNS, *MEASURED_COLUMNS]).astype(float)
    predicted_ms, measured_ms = (_sum_ms(costs, kind, MEASURED_PARTS) for kind in ("predicted", "measured"))
    lacks_reduction = costs["predicted_reduction_ms"].notna() & costs["measured_reduction_ms"].isna()
    ranks = plan_costs[keys].assign(
        predicted_ms=predicted_ms,
        step_ms=_sum_ms(costs, "predicted", PARTS),
        measured_ms=measured_ms.mask(lacks_reduction),
        predicted_compute_ms=costs["predicted_compute_ms"],
        measured_compute_ms=costs["measured_compute_ms"],
    )
    grouped = ranks.groupby(keys, sort=False, observed=True)
    size = grouped.size()
    largest = grouped.max().where(grouped.count().eq(size, axis=0))
    with np.errstate(invalid="ignore"):
        imbalance = {
            kind: largest[f"{kind}_compute_ms"] / grouped[f"{kind}_compute_ms"].mean() - 1.0
            for kind in ("measured", "predicted")
        }
    totals = {name: largest[name] for name in ("predicted_ms", "step_ms", "measured_ms")}
    columns = {"world_size": size, **totals, "imbalance": imbalance["measured"].fillna(imbalance["predicted"])}
    return pd.DataFrame(columns).reset_index()


def _sum_ms(costs: pd.DataFrame, kind: str, parts: Sequence[str]) -> pd.Series:
    """Sum of some parts in every row; an optional part that is null counts as 0."""
    values = {part: costs[f"{kind}_{part}_ms"] for part in parts}
    return sum(ms if part in PARTS_OF_ALL else ms.fillna(0.0) for part, ms in values.items())  # type: ignore[return-value]


def is_measured(plan_costs: pd.DataFrame, part: str) -> bool:
    """Whether any rank of `plan_costs` has a measured cost of the part."""
    return f"measured_{part}_ms" in plan_costs and bool(plan_costs[f"measured_{part}_ms"].notna().any())


def basis_of(totals: pd.DataFrame) -> Basis:
    """The kind of cost by which plans are compared: `measured` if any plan was measured, `predicted` otherwise."""
    return "measured" if totals["measured_ms"].notna().any() else "predicted"


def cost_table(costs: pd.DataFrame, sharders: Sequence[str], column: str) -> pd.DataFrame:
    """Embedding cost in ms by task (rows) and sharder (columns). A task without costs has no row; other gaps are NaN.

    Args:
        costs: the result of `plan_totals`, or rows of `benchmark.task_costs`.
        sharders: names and order of the columns.
        column: the cost, one of `measured_ms, predicted_ms, step_ms`.
    """
    wide = costs.pivot_table(index="task_id", columns="sharder", values=column, sort=False)
    return wide.reindex(columns=list(sharders))
