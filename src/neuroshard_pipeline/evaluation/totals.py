"""Adds up the costs of plans: embedding cost and imbalance of every plan from the costs of its ranks."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from neuroshard_pipeline.evaluation.comparison import Basis
from neuroshard_pipeline.search.plan import Plan

#: Parts of the embedding cost of a rank.
PARTS = ("compute", "forward_comm", "backward_comm")
PREDICTED_COLUMNS = [f"predicted_{part}_ms" for part in PARTS]
MEASURED_COLUMNS = [f"measured_{part}_ms" for part in PARTS]


def plan_costs_frame(plans: Sequence[Plan], measured_ms: Sequence[Sequence[Sequence[float]]] = ()) -> pd.DataFrame:
    """`search.plan_costs`: one row per plan and rank with predicted and measured costs; missing costs are NaN.

    Args:
        plans: P plans.
        measured_ms: `measured_ms[part][plan][rank]`, with the parts in the order of `PARTS`; the last parts may be
            missing if they were not measured.
    """
    frames = []
    for index, plan in enumerate(plans):
        columns: dict[str, Any] = {
            "task_id": plan.task.task_id,
            "sharder": plan.sharder,
            "rank": np.arange(plan.task.world_size),
            "memory_bytes": np.array(plan.memory_bytes, dtype=np.int64),
            **dict(zip(PREDICTED_COLUMNS, _predicted_ms(plan), strict=True)),
            **dict.fromkeys(MEASURED_COLUMNS, np.nan),
            **{name: np.array(part[index]) for name, part in zip(MEASURED_COLUMNS, measured_ms, strict=False)},
        }
        frames.append(pd.DataFrame(columns))
    names = ["task_id", "sharder", "rank", "memory_bytes", *PREDICTED_COLUMNS, *MEASURED_COLUMNS]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=names)


def plan_totals(plan_costs: pd.DataFrame) -> pd.DataFrame:
    """Embedding cost and imbalance of every plan.

    The cost of a rank is the sum of its three parts. The embedding cost is the largest cost of a rank [Zha2023] §2.

    Args:
        plan_costs: `search.plan_costs` or `benchmark.plan_costs`.

    Returns:
        One row per plan: `task_id, sharder` (and `seed` if the input has it), `world_size, predicted_ms,
        measured_ms`, and `imbalance`, the largest compute cost of a rank divided by the mean, minus 1 (measured if
        the plan was measured, predicted otherwise). A cost is NaN if any rank lacks a part.
    """
    keys = [key for key in ("task_id", "sharder", "seed") if key in plan_costs]
    costs = plan_costs[[*PREDICTED_COLUMNS, *MEASURED_COLUMNS]].astype(float)
    ranks = plan_costs[keys].assign(
        predicted_ms=costs[PREDICTED_COLUMNS].sum(axis=1, skipna=False),
        measured_ms=costs[MEASURED_COLUMNS].sum(axis=1, skipna=False),
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
    totals = {name: largest[name] for name in ("predicted_ms", "measured_ms")}
    columns = {"world_size": size, **totals, "imbalance": imbalance["measured"].fillna(imbalance["predicted"])}
    return pd.DataFrame(columns).reset_index()


def basis_of(totals: pd.DataFrame) -> Basis:
    """The kind of cost by which plans are compared: `measured` if any plan was measured, `predicted` otherwise."""
    return "measured" if totals["measured_ms"].notna().any() else "predicted"


def cost_table(costs: pd.DataFrame, sharders: Sequence[str], basis: Basis) -> pd.DataFrame:
    """Embedding cost in ms by task (rows) and sharder (columns). A task without costs has no row; other gaps are NaN.

    Args:
        costs: the result of `plan_totals`, or rows of `benchmark.task_costs`.
        sharders: names and order of the columns.
        basis: `measured` or `predicted`.
    """
    wide = costs.pivot_table(index="task_id", columns="sharder", values=f"{basis}_ms", sort=False)
    return wide.reindex(columns=list(sharders))


def _predicted_ms(plan: Plan) -> tuple[tuple[float, ...], ...]:
    """Predicted costs per part and rank, in the order of `PARTS`; NaN if the plan has no predicted cost."""
    if plan.predicted is None:
        return ((np.nan,) * plan.task.world_size,) * len(PARTS)
    return plan.predicted.compute_ms, plan.predicted.forward_comm_ms, plan.predicted.backward_comm_ms
