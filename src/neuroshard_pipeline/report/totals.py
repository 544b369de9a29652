"""What the contract frames add up to: cost of every plan, tasks that every sharder solved, rows of the summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd

from neuroshard_pipeline.report.style import OURS

#: Parts of a rank's embedding cost, as the columns of `search.plan_costs` call them.
PARTS: tuple[str, ...] = ("compute", "backward_comm", "forward_comm")

Kind = Literal["measured", "predicted"]


def rank_ms(plan_costs: pd.DataFrame, kind: Kind) -> pd.Series:
    """Compute plus both communication costs of every row, in ms; NaN where a part is missing."""
    columns = [f"{kind}_{part}_ms" for part in PARTS]
    return plan_costs[columns].astype("float64").sum(axis=1, skipna=False)


def plan_totals(plan_costs: pd.DataFrame) -> pd.DataFrame:
    """Embedding cost of every plan: the largest rank's.

    Args:
        plan_costs: `search.plan_costs`.

    Returns:
        One row per task and sharder: `task_id, sharder, world_size, predicted_ms, measured_ms`; NaN where any rank
        of the plan lacks a part.
    """
    ranks = plan_costs[["task_id", "sharder", "rank"]].copy()
    for kind in ("predicted", "measured"):
        ranks[f"{kind}_ms"] = rank_ms(plan_costs, kind)
    plans = ranks.groupby(["task_id", "sharder"], sort=False, observed=True)
    return pd.DataFrame(
        {
            "world_size": plans["rank"].nunique(),
            "predicted_ms": plans["predicted_ms"].max().where(plans["predicted_ms"].count() == plans.size()),
            "measured_ms": plans["measured_ms"].max().where(plans["measured_ms"].count() == plans.size()),
        }
    ).reset_index()


def basis(totals: pd.DataFrame) -> Kind:
    """Compare by what was measured, or by predictions where nothing was."""
    return "measured" if totals["measured_ms"].notna().any() else "predicted"


def comparable(totals: pd.DataFrame, sharders: Sequence[str], kind: Kind) -> pd.DataFrame:
    """`task_id` by sharder, cost in ms, of the tasks for which every one of `sharders` has a cost; may be empty."""
    wide = totals.pivot_table(index="task_id", columns="sharder", values=f"{kind}_ms", sort=False)
    return wide.reindex(columns=list(sharders)).dropna()


def relative_to_best(totals: pd.DataFrame, kind: Kind) -> pd.DataFrame:
    """Add `relative`: a plan's cost over that of the task's cheapest plan. Plans without a cost are left out."""
    known = totals.dropna(subset=[f"{kind}_ms"])
    best = known.groupby("task_id", observed=True)[f"{kind}_ms"].transform("min")
    return known.assign(relative=known[f"{kind}_ms"] / best)


def by_cost(totals: pd.DataFrame) -> list[str]:
    """Sharders from the cheapest to the dearest, by mean cost relative to the best of every task they solved."""
    means = relative_to_best(totals, basis(totals)).groupby("sharder", observed=True)["relative"].mean()
    missing = [name for name in dict.fromkeys(totals["sharder"]) if name not in means.index]
    return [*means.sort_values(kind="stable").index, *missing]


def typical_task(totals: pd.DataFrame) -> tuple[str, str, str] | None:
    """A task whose saving is the median one, to be shown as an example.

    Returns:
        `(task_id, before, after)`: `after` is our sharder and `before` the cheapest heuristic on that task; where
        only ours or only heuristics solved it, the dearest and the cheapest sharder. None where no task has two plans.
    """
    kind = basis(totals)
    known = totals.dropna(subset=[f"{kind}_ms"])
    found = [choice for _, task in known.groupby("task_id", sort=False) if (choice := _rivals(task, f"{kind}_ms"))]
    if not found:
        return None
    found.sort(key=lambda choice: choice[0])
    return found[len(found) // 2][1:]


def _rivals(task: pd.DataFrame, column: str) -> tuple[float, str, str, str] | None:
    """`(cost ratio after/before, task_id, before, after)` of one task."""
    if len(task) < 2:
        return None
    cost = task.set_index("sharder")[column].sort_values(kind="stable")
    ours = [name for name in OURS if name in cost.index]
    heuristics = [name for name in cost.index if name not in OURS]
    before, after = (heuristics[0], ours[0]) if ours and heuristics else (cost.index[-1], cost.index[0])
    return float(cost[after] / cost[before]), str(task["task_id"].iloc[0]), str(before), str(after)


@dataclass(frozen=True)
class SharderRow:
    """One sharder of `search.summary`; a cost is None where there is no task that every sharder solved."""

    sharder: str
    solved: int
    tried: int
    measured_ms: float | None
    predicted_ms: float | None
    seconds_per_task: float | None

    @property
    def cost_ms(self) -> float | None:
        """The measured cost, or the predicted one where nothing was measured."""
        return self.predicted_ms if self.measured_ms is None else self.measured_ms


def sharder_rows(summary: Mapping[str, Any]) -> list[SharderRow]:
    """The rows of `search.summary`, cheapest first; sharders without a cost come last, by name."""
    rows = [
        SharderRow(
            sharder=name,
            solved=int(values["tasks_solved"]),
            tried=int(values["tasks_tried"]),
            measured_ms=_number(values.get("mean_measured_ms")),
            predicted_ms=_number(values.get("mean_predicted_ms")),
            seconds_per_task=_number(values.get("mean_seconds_per_task")),
        )
        for name, values in summary["sharders"].items()
    ]
    return sorted(rows, key=lambda row: (row.cost_ms is None, row.cost_ms or 0.0, row.sharder))


def _number(value: Any) -> float | None:
    """A float, or None for null and NaN."""
    return None if value is None or pd.isna(value) else float(value)
