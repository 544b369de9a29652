"""The report's tables of numbers: accuracy, measurements, tasks, and any nested mapping as rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from neuroshard_pipeline.report.figures.measurements import relative_spread, succeeded
from neuroshard_pipeline.report.totals import basis
from neuroshard_pipeline.report.wording import NOTHING, amount, decimals_for, number, percent

#: What every model reports, and how a page calls it.
_METRIC_NAMES = {
    "mape": "mean error",
    "median_ape": "median error",
    "bias": "bias",
    "noise_floor": "noise floor",
    "coverage_90": "in interval",
    "mean_relative_width": "width",
    "r2": "R²",
    "kendall_tau": "Kendall's τ",
    "n_test": "samples",
}
#: What is said of the predictions of plans.
_PLAN_FIGURES = {
    "mape": "mean error",
    "bias": "bias",
    "drift": "drift since training",
    "mape_net_of_drift": "mean error net",
    "bias_net_of_drift": "bias net",
    "coverage_90": "in interval",
    "coverage_90_net_of_drift": "in interval net",
    "mean_relative_width": "width",
}
_SHARES = {
    "mape",
    "median_ape",
    "bias",
    "noise_floor",
    "coverage_90",
    "mean_relative_width",
    "drift",
    "mape_net_of_drift",
    "bias_net_of_drift",
    "coverage_90_net_of_drift",
}

#: The model of `train.metrics` that predicts a part of the embedding cost.
_MODEL_OF_PART = {"compute": "compute", "backward_comm": "comm_backward", "forward_comm": "comm_forward"}


def accuracy_table(metrics: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """Header and one line per model; metrics that no model reports are left out."""
    keys = [key for key in _METRIC_NAMES if any(key in values for values in metrics.values())]
    lines = [["model", *(_METRIC_NAMES[key] for key in keys)]]
    for name, values in metrics.items():
        lines.append([name.replace("_", " "), *(_metric(key, values.get(key)) for key in keys)])
    return lines


def _metric(key: str, value: float | None) -> str:
    if value is None or pd.isna(value):
        return NOTHING
    if key in _SHARES:
        return f"{100 * value:.1f} %"
    return f"{value:,}" if isinstance(value, int) else f"{value:.3f}"


def plan_accuracy_table(summary: Mapping[str, Any]) -> list[list[str]] | None:
    """Header and one line per part of the embedding cost: how well plans were predicted; None if not measured."""
    errors = summary.get("prediction_on_plans")
    if not errors:
        return None
    keys = [key for key in _PLAN_FIGURES if any(key in values for values in errors.values())]
    lines = [["part", *(_PLAN_FIGURES[key] for key in keys), "compared"]]
    for part, values in errors.items():
        shares = [_metric(key, values.get(key)) for key in keys]
        lines.append([part.replace("_", " "), *shares, f"{values['count']:,}"])
    return lines


def noise_floors(metrics: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Noise floor of every model, as a share of the cost; models that report none are left out."""
    floors = {name: values.get("noise_floor") for name, values in metrics.items()}
    return {name: float(floor) for name, floor in floors.items() if floor is not None}


def rank_noise_floors(metrics: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Noise floor of every part of the embedding cost: that of the model which predicts it."""
    floors = noise_floors(metrics)
    return {part: floors[model] for part, model in _MODEL_OF_PART.items() if model in floors}


def attempt_failures(summary: Mapping[str, Any]) -> list[list[str]]:
    """Header and one line per task that a sharder found no plan for, with its reason."""
    lines = [
        [sharder, str(task_id), str(reason)]
        for sharder, values in summary["sharders"].items()
        for task_id, reason in values.get("failures", {}).items()
    ]
    return [["sharder", "task", "reason"], *lines]


def measurement_table(
    compute_costs: pd.DataFrame, comm_costs: pd.DataFrame, hardware: Mapping[str, Any]
) -> list[list[str]]:
    """Header and one line per quantity, for compute and communication samples.

    Args:
        compute_costs: `measure.compute_costs`.
        comm_costs: `measure.comm_costs`.
        hardware: `measure.hardware`, whose noise floor is shown where it has one.
    """
    floors = hardware.get("noise_floor") or {}
    columns = [
        _measured_facts(compute_costs) | _noise_facts(floors.get("compute") or {}),
        _measured_facts(comm_costs) | _noise_facts(floors.get("comm") or {}),
    ]
    header = ["", "compute", "communication"]
    return [header, *([name, *(facts.get(name, NOTHING) for facts in columns)] for name in columns[0] | columns[1])]


def _measured_facts(costs: pd.DataFrame) -> dict[str, str]:
    known = succeeded(costs)
    facts = {
        "samples": f"{costs['sample_id'].nunique():,}",
        "samples that failed": f"{costs['sample_id'].nunique() - known['sample_id'].nunique():,}",
    }
    if known.empty:
        return facts
    if "repeats" in known:
        fewest, most = int(known["repeats"].min()), int(known["repeats"].max())
        facts["repeats per sample"] = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    for direction in ("forward", "backward"):
        low, middle, high = known[f"{direction}_ms"].quantile([0.05, 0.5, 0.95])
        facts[f"{direction} cost, ms: median"] = amount(middle)
        facts[f"{direction} cost, ms: 5th to 95th percentile"] = f"{amount(low)} to {amount(high)}"
    spread = relative_spread(known).dropna()
    if len(spread):
        facts["spread of repeats: median"] = percent(float(spread.median()))
        facts["spread of repeats: 90th percentile"] = percent(float(spread.quantile(0.9)))
    return facts


def _noise_facts(floor: Mapping[str, Any]) -> dict[str, str]:
    """How far two independent measurements lie apart: `{samples, total: {median, p90}, ...}` of the campaign."""
    total = floor.get("total") or {}
    names = {"median": "noise floor: median", "p90": "noise floor: 90th percentile"}
    shown = {names[key]: percent(float(total[key])) for key in names if total.get(key) is not None}
    return {"samples measured twice": str(floor.get("samples", NOTHING)), **shown} if shown else {}


def failure_messages(compute_costs: pd.DataFrame, comm_costs: pd.DataFrame, most: int = 5) -> list[tuple[str, int]]:
    """The commonest errors of failed samples and how many rows each concerns."""
    errors = pd.concat([compute_costs["error"], comm_costs["error"]]).dropna().astype(str)
    counts = errors[errors != ""].value_counts()
    return [(str(message), int(count)) for message, count in counts.head(most).items()]


def task_table(totals: pd.DataFrame, sharders: Sequence[str]) -> list[list[str]]:
    """Header and one line per task: ranks, then every sharder's embedding cost in ms, the cheapest starred."""
    column = f"{basis(totals)}_ms"
    lines = [["task", "ranks", *sharders]]
    for task_id, plans in totals.groupby("task_id", sort=False):
        costs = plans.set_index("sharder")[column].reindex(list(sharders))
        decimals = decimals_for([float(cost) for cost in costs.dropna()])
        cells = [number(None if pd.isna(cost) else float(cost), decimals) for cost in costs]
        marked = [f"{cell} *" if cost == costs.min() else cell for cell, cost in zip(cells, costs, strict=True)]
        lines.append([str(task_id), str(int(plans["world_size"].max())), *marked])
    return lines


def nested_rows(value: Mapping[Any, Any], depth: int = 0) -> list[tuple[int, str, str]]:
    """A nested mapping as `(depth, key, text)`; a key that only holds further keys has an empty text."""
    rows: list[tuple[int, str, str]] = []
    for key, item in value.items():
        inner = dict(enumerate(item, start=1)) if _is_list_of_mappings(item) else item
        if isinstance(inner, Mapping):
            rows.append((depth, str(key), "" if inner else "none"))
            rows += nested_rows(inner, depth + 1)
        else:
            rows.append((depth, str(key), _text(inner)))
    return rows


def _is_list_of_mappings(item: Any) -> bool:
    return isinstance(item, list) and bool(item) and all(isinstance(entry, Mapping) for entry in item)


def _text(item: Any) -> str:
    if item is None:
        return NOTHING
    if isinstance(item, bool):
        return "yes" if item else "no"
    if isinstance(item, float):
        return f"{item:.6g}"
    if isinstance(item, int):
        return f"{item:,}" if abs(item) >= 10_000 else str(item)
    if isinstance(item, list | tuple):
        return ", ".join(_text(entry) for entry in item) or "none"
    return str(item)
