"""Predicted beside measured steps of TorchRec's embedding module, by plan, by part and by sharder."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from neuroshard_pipeline.cost_models.metrics import kendall_tau
from neuroshard_pipeline.evaluation.comparison import OURS, Bootstrap, Comparison
from neuroshard_pipeline.search.plan import Plan, PlanCost
from neuroshard_pipeline.sharders.registry import Solutions
from neuroshard_pipeline.torchrec_bridge.truth.params import TruthStepParams

Json = dict[str, Any]

#: Parts of a step: the fields of `PlanCost` that predict them, and the measured columns that they consist of.
PARTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "input dist": (("input_dist_ms",), ("input_dist_ms",)),
    "lookup forward": (("forward_compute_ms",), ("lookup_forward_ms",)),
    "lookup backward": (("backward_compute_ms",), ("lookup_backward_ms",)),
    "output dist, reductions": (
        ("forward_comm_ms", "backward_comm_ms", "reduction_ms"),
        ("output_dist_ms", "other_backward_ms"),
    ),
    "not attributed to one part": (("module_ms",), ()),
}

#: With this many resamples the ends of an interval are accurate to a twentieth of its width.
_BOOTSTRAP = Bootstrap(confidence=0.95, resamples=2000, seed=0)
#: Fewer tasks do not support a statement about other tasks.
_LEAST_TASKS = 5
#: A sharder that solves a smaller share of the tasks does not limit the common tasks, and has no mean cost.
_LEAST_SOLVED = 0.5
_PLAN = ["task_id", "sharder"]


def summarise_steps(steps: pd.DataFrame, solutions: Solutions, params: TruthStepParams) -> Json:
    """Compare predicted with measured steps; the result is ready for JSON.

    The time of a step is that of its slowest rank. The measured cost of a plan is the quantile `params.quantile` of its
    timed steps. Costs of identical plans of a task count once in the agreement.

    Args:
        steps: the result of `measure_steps`.
        solutions: the plans that were measured, and the sharders that found no plan.
        params: how the steps were timed.

    Returns:
        `plans`, one entry per plan: `task_id, sharder, predicted_ms, measured_ms, ratio` (predicted / measured) and
        `same_plan_as`, an earlier sharder with the same plan; `agreement`: see `_agreement`; `parts`: see `_parts`;
        `sharders`, mean costs over the common tasks, solved by all sharders that solved at least half of the tasks;
        `pairs`, comparisons of the first of `OURS` with every other sharder, measured and predicted; `failures`, number
        of unsolved tasks by sharder; `world_size`, `num_tasks` and `num_common_tasks`; `timing`, the `params`.
    """
    timed = steps[steps["timed"]]
    slowest = timed.groupby([*_PLAN, "round", "step"], sort=False)["step_ms"].max().reset_index()
    plans = _plan_costs(slowest, solutions.plans, params.quantile)
    names = list(dict.fromkeys(solutions.attempts["sharder"]))
    tables = {
        basis: plans.pivot_table(index="task_id", columns="sharder", values=f"{basis}_ms", sort=False).reindex(
            columns=names
        )
        for basis in ("predicted", "measured")
    }
    compared = [name for name in names if tables["measured"][name].notna().mean() >= _LEAST_SOLVED]
    common = tables["measured"][compared].dropna().index
    return {
        "world_size": solutions.plans[0].task.world_size,
        "num_tasks": int(solutions.attempts["task_id"].nunique()),
        "num_common_tasks": len(common),
        "timing": params.model_dump(mode="json"),
        "agreement": _agreement(plans, slowest, params.quantile),
        "parts": _parts(timed, solutions.plans, params.quantile),
        "sharders": {
            name: {
                f"{basis}_ms": _number(table.loc[common, name].mean(skipna=False)) if name in compared else None
                for basis, table in tables.items()
            }
            for name in names
        },
        "pairs": _pairs(tables, names),
        "failures": solutions.failures["sharder"].value_counts().to_dict(),
        "plans": plans.astype(object).where(plans.notna(), None).to_dict("records"),
    }


def _costs(slowest: pd.DataFrame, quantile: float) -> pd.Series:
    """The quantile of the ms of every plan's steps, by task and sharder."""
    return slowest.groupby(_PLAN)["step_ms"].quantile(quantile)


def _plan_costs(slowest: pd.DataFrame, plans: Sequence[Plan], quantile: float) -> pd.DataFrame:
    """Predicted and measured cost of every plan, and the earlier sharder that made the same plan of the task."""
    first: dict[tuple[str, frozenset[Any]], str] = {}
    measured_ms = _costs(slowest, quantile).to_dict()
    rows = []
    for plan in plans:
        task_id, predicted = plan.task.task_id, plan.predicted_cost_ms
        measured = measured_ms.get((task_id, plan.sharder), np.nan)
        placed = task_id, frozenset(zip(plan.shards, plan.ranks, strict=True))
        rows.append(
            {
                "task_id": task_id,
                "sharder": plan.sharder,
                "predicted_ms": predicted,
                "measured_ms": measured,
                "ratio": None if predicted is None else predicted / measured,
                "same_plan_as": first.get(placed),
            }
        )
        first.setdefault(placed, plan.sharder)
    return pd.DataFrame(rows)


def _agreement(plans: pd.DataFrame, slowest: pd.DataFrame, quantile: float) -> dict[str, float | None]:
    """How well predicted and measured costs of different plans agree.

    Returns:
        `plans`, their number; `median_ratio`, median of predicted / measured; `median_error`, median of |ratio - 1|;
        `tau`, Kendall's tau-b of predicted and measured costs within a task, averaged over the tasks; `tau_of_halves`,
        the same for the measured costs of even and odd rounds, which shows how well the costs of these plans can be
        ranked on this machine; `noise`, median relative difference between the costs of even and odd rounds.
    """
    plans = plans[plans["same_plan_as"].isna() & plans["predicted_ms"].notna()]
    names = pd.MultiIndex.from_frame(plans[_PLAN])
    even, odd = (_costs(slowest[slowest["round"] % 2 == half], quantile).reindex(names).to_numpy() for half in (0, 1))
    halves = plans.assign(even=even, odd=odd)
    return {
        "plans": len(plans),
        "median_ratio": _number(plans["ratio"].median()),
        "median_error": _number((plans["ratio"] - 1.0).abs().median()),
        "tau": _tau(halves, "measured_ms", "predicted_ms"),
        "tau_of_halves": _tau(halves, "even", "odd"),
        "noise": _number(float(np.median(np.abs(even / odd - 1.0)))) if len(plans) else None,
    }


def _tau(plans: pd.DataFrame, measured: str, predicted: str) -> float | None:
    """Mean over tasks of Kendall's tau of two columns; tasks with fewer than three plans do not count."""
    taus = [kendall_tau(own[measured], own[predicted]) for _, own in plans.groupby("task_id") if len(own) >= 3]
    return _number(float(np.nanmean(taus))) if np.isfinite(taus).any() else None


def _parts(timed: pd.DataFrame, plans: Sequence[Plan], quantile: float) -> dict[str, dict[str, float | None]]:
    """Mean over all priced plans and their ranks of the predicted and measured ms of every part.

    The measured part of a rank is the quantile of its timed steps. It includes the time in which a collective waits for
    other ranks. `output dist, reductions` is the forward of the output dist and the whole backward without the lookups.
    A predicted value is None if nothing predicts the part. A measured value is None if the part is contained in the
    times of other parts.
    """
    timed = timed.assign(other_backward_ms=timed["backward_ms"] - timed["lookup_backward_ms"])
    names = list({name for _, columns in PARTS.values() for name in columns})
    priced = {(plan.task.task_id, plan.sharder): plan.predicted for plan in plans if plan.predicted is not None}
    of_ranks = timed.groupby([*_PLAN, "rank"])[names].quantile(quantile).reset_index("rank", drop=True)
    measured = of_ranks[of_ranks.index.isin(priced)].mean()
    costs = list(priced.values())
    found: dict[str, dict[str, float | None]] = {}
    for part, (fields, columns) in PARTS.items():
        of_plans = [part_ms for cost in costs if (part_ms := _predicted_part(cost, fields)) is not None]
        found[part] = {
            "predicted_ms": sum(of_plans) / len(costs) if of_plans else None,
            "measured_ms": float(measured[list(columns)].sum()) if columns else None,
        }
    return found


def _predicted_part(cost: PlanCost, fields: Sequence[str]) -> float | None:
    """Mean over ranks of the sum of some fields of a predicted cost; None if the cost has none of them."""
    known = [np.mean(ms) for field in fields if (ms := getattr(cost, field, ()))]
    return float(sum(known)) if known else None


def _pairs(tables: Mapping[str, pd.DataFrame], names: Sequence[str]) -> list[Json]:
    """Comparisons of the first of `OURS` with all other sharders, with the predicted ratio beside the measured one."""
    ours = next((name for name in OURS if name in names), None)
    if ours is None:
        return []
    by_basis = {
        basis: Comparison(_BOOTSTRAP, _LEAST_TASKS, "measured" if basis == "measured" else "predicted")
        for basis in tables
    }
    found = []
    for rival in names:
        if rival != ours:
            both = {basis: by_basis[basis].compare(table, ours, rival) for basis, table in tables.items()}
            found.append(both["measured"] | {"predicted_ratio": both["predicted"]["ratio"]})
    return found


def _number(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
