"""How accurately the cost models predict the measured costs of the plans of all sharders."""

import pandas as pd

from neuroshard_pipeline.cost_models.intervals import coverage, relative_width
from neuroshard_pipeline.evaluation.totals import PARTS, plan_totals

Figures = dict[str, dict[str, float | int]]


def prediction_errors(plan_costs: pd.DataFrame, intervals: pd.DataFrame) -> Figures:
    """Compare predicted and measured costs of plans, with `search.plan_costs` and `search.plan_intervals`.

    Rows without a measured cost are left out.

    Returns:
        One entry per part of the cost that was predicted and measured, with figures over ranks, and `step`, the cost
        of a plan, with figures over plans. The figures are `mape` (mean |predicted - measured| / measured), `bias`
        (mean of the same errors with their signs), `count`, and for parts `coverage_90` and `mean_relative_width` of
        the intervals.
    """
    ranks = plan_costs.merge(intervals, on=["task_id", "sharder", "rank"], how="left")
    figures: Figures = {}
    for part in PARTS:
        known = _known(ranks, f"predicted_{part}_ms", f"measured_{part}_ms")
        if len(known):
            bounds = known[[f"low_{part}_ms", f"high_{part}_ms"]].to_numpy(dtype=float)
            measured, predicted = (
                known[f"{kind}_{part}_ms"].to_numpy(dtype=float) for kind in ("measured", "predicted")
            )
            figures[part] = _errors(known[f"predicted_{part}_ms"] / known[f"measured_{part}_ms"] - 1.0) | {
                "coverage_90": coverage(measured, bounds),
                "mean_relative_width": relative_width(predicted, bounds),
            }
    steps = _known(plan_totals(plan_costs), "predicted_step_ms", "measured_step_ms")
    if len(steps):
        figures["step"] = _errors(steps["predicted_step_ms"] / steps["measured_step_ms"] - 1.0)
    return figures


def _known(costs: pd.DataFrame, predicted: str, measured: str) -> pd.DataFrame:
    """The rows whose predicted and measured costs are above 0; an empty rank still takes a moment for no lookups."""
    return costs[(costs[predicted].astype(float) > 0) & (costs[measured].astype(float) > 0)]


def _errors(errors: pd.Series) -> dict[str, float | int]:
    return {"mape": float(errors.abs().mean()), "bias": float(errors.mean()), "count": len(errors)}
