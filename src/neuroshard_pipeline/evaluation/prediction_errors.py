"""How accurately the cost models predict the measured costs of the plans of all sharders."""

import pandas as pd

from neuroshard_pipeline.cost_models.intervals import coverage, relative_width
from neuroshard_pipeline.evaluation.anchors import drifts_of_parts
from neuroshard_pipeline.evaluation.drift import without_drift
from neuroshard_pipeline.evaluation.totals import MEASURED_PARTS, plan_totals

Figures = dict[str, dict[str, float | int]]

#: Figures that are also computed from measured costs without the machine's drift (`drift`).
_NET_OF_DRIFT = ("mape", "bias", "coverage_90")


def prediction_errors(
    plan_costs: pd.DataFrame, intervals: pd.DataFrame | None = None, anchors: pd.DataFrame | None = None
) -> Figures:
    """Compare predicted and measured costs of plans.

    Args:
        plan_costs: `search.plan_costs`; rows without a measured cost (an empty rank or a failure) are left out.
        intervals: `search.plan_intervals`, or None.
        anchors: `search.anchors`, or None.

    Returns:
        One entry per part of the cost (`compute`, `forward_comm`, `backward_comm`, `reduction`), with figures over
        ranks, and `embedding_cost`, the cost of these parts together, with figures over plans. The figures are `mape`
        (mean |predicted - measured| / measured), `bias` (mean of the same errors with their signs) and `count`; with
        intervals, `coverage_90` and `mean_relative_width` of the parts. With anchors, compute and all-to-alls also have
        `drift`, the median relative change of the anchors' costs since the campaign that measured the training data;
        and `mape`, `bias` and `coverage_90` are also given for costs without the drift, as `<figure>_net_of_drift`.
        Entries without measured costs are left out.
    """
    figures = _figures(plan_costs, intervals)
    drifts = {} if anchors is None else drifts_of_parts(anchors)
    if drifts:
        first_costs = without_drift(plan_costs, {f"measured_{part}_ms": drift for part, drift in drifts.items()})
        for part, found in _figures(first_costs, intervals).items():
            figures[part] |= {f"{name}_net_of_drift": found[name] for name in _NET_OF_DRIFT if name in found}
    for part in figures.keys() & drifts.keys():
        figures[part]["drift"] = drifts[part].ratio - 1
    return figures


def _figures(plan_costs: pd.DataFrame, intervals: pd.DataFrame | None) -> Figures:
    figures: Figures = {
        name: {"mape": float(error.abs().mean()), "bias": float(error.mean()), "count": len(error)}
        for name, error in _relative_errors(plan_costs).items()
    }
    if intervals is not None:
        for part, found in _interval_figures(plan_costs.merge(intervals, on=["task_id", "sharder", "rank"])).items():
            figures[part] |= found
    return figures


def _relative_errors(plan_costs: pd.DataFrame) -> dict[str, pd.Series]:
    """Signed relative errors by part and of the embedding cost; without parts that were not measured."""
    totals = plan_totals(plan_costs)
    costs = {
        part: (plan_costs[f"predicted_{part}_ms"], plan_costs[f"measured_{part}_ms"]) for part in _known(plan_costs)
    }
    costs["embedding_cost"] = (totals["predicted_ms"], totals["measured_ms"])
    errors = {
        name: (predicted / measured.astype(float) - 1.0)[measured.astype(float) > 0]
        for name, (predicted, measured) in costs.items()
    }
    return {name: error for name, error in errors.items() if len(error)}


def _known(costs: pd.DataFrame) -> list[str]:
    """The measured parts; files of older versions lack reductions."""
    return [part for part in MEASURED_PARTS if f"measured_{part}_ms" in costs]


def _interval_figures(ranks: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Coverage and relative width by part, over the ranks that have a measured cost."""
    figures = {}
    for part in _known(ranks):
        known = ranks[ranks[f"measured_{part}_ms"].astype(float) > 0]
        if len(known):
            bounds = known[[f"low_{part}_ms", f"high_{part}_ms"]].to_numpy(dtype=float)
            figures[part] = {
                "coverage_90": coverage(known[f"measured_{part}_ms"].to_numpy(dtype=float), bounds),
                "mean_relative_width": relative_width(known[f"predicted_{part}_ms"].to_numpy(dtype=float), bounds),
            }
    return figures
