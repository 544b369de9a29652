"""Facts of the report, such as accuracy, measurements, tasks and failures, as tables, rows and sentences."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from neuroshard_pipeline.cost_models.caveats import busy_machine
from neuroshard_pipeline.evaluation.totals import COST_COLUMNS, basis_of
from neuroshard_pipeline.report.formats import MISSING, amount, decimals_for, fixed, percent
from neuroshard_pipeline.tables.table import SHARDING_TYPES

#: Column names of the metrics of cost models, on samples and on plans, in the order of the columns.
_METRICS = {
    "mape": "mean error",
    "median_ape": "median error",
    "bias": "bias",
    "noise_floor": "noise floor",
    "coverage_90": "in interval",
    "mean_relative_width": "interval width",
    "r2": "R²",
    "kendall_tau": "Kendall's τ",
    "n_test": "samples",
    "count": "compared",
}
#: Formats of the metrics that are plain numbers; all others are shares.
_NUMBERS = {"r2": ".3f", "kendall_tau": ".3f", "n_test": ",", "count": ","}

#: For each of the paper's three parts of the embedding cost, the model of `train.metrics` that predicts it.
_MODEL_OF_PART = {"compute": "compute", "backward_comm": "comm_backward", "forward_comm": "comm_forward"}

_LOAD = "cores used by other programs"

#: Columns of the table of sharding types: a whole table is column-wise with a single shard.
_TYPE_COLUMNS = ("whole", *SHARDING_TYPES)


def accuracy_table(metrics: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """Header and one line per cost model; metrics that no model reports are left out."""
    return _metric_table("model", metrics)


def plan_accuracy_table(summary: Mapping[str, Any]) -> list[list[str]] | None:
    """Header, a line of errors per measured part, and one for the step; None if no plan was measured."""
    errors = summary.get("prediction_on_plans")
    return _metric_table("part", errors) if errors else None


def _metric_table(first: str, rows: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """Header and one line per entry of `rows`, with the metrics that any row has."""
    keys = [key for key in _METRICS if any(key in values for values in rows.values())]
    lines = [
        [name.replace("_", " "), *(_metric(key, values.get(key)) for key in keys)] for name, values in rows.items()
    ]
    return [[first, *(_METRICS[key] for key in keys)], *lines]


def _metric(key: str, value: float | None) -> str:
    if value is None or pd.isna(value):
        return MISSING
    return format(value, _NUMBERS[key]) if key in _NUMBERS else f"{100 * value:.1f} %"


def noise_floors(metrics: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Noise floor of every model as a share of the cost; models without a noise floor are left out."""
    floors = {name: values.get("noise_floor") for name, values in metrics.items()}
    return {name: float(floor) for name, floor in floors.items() if floor is not None}


def rank_noise_floors(metrics: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Noise floor of compute and both directions of all-to-alls, each from the model that predicts this part."""
    floors = noise_floors(metrics)
    return {part: floors[model] for part, model in _MODEL_OF_PART.items() if model in floors}


def attempt_failures(summary: Mapping[str, Any]) -> list[list[str]]:
    """Header and one line per failed attempt: the sharder, the task for which it found no plan, and the reason."""
    lines = [
        [sharder, str(task_id), str(reason)]
        for sharder, values in summary["sharders"].items()
        for task_id, reason in values.get("failures", {}).items()
    ]
    return [["sharder", "task", "reason"], *lines]


def measurement_table(
    compute_costs: pd.DataFrame, comm_costs: pd.DataFrame, hardware: Mapping[str, Any]
) -> list[list[str]]:
    """Header and one line per quantity, for compute and communication samples."""
    floors = hardware.get("noise_floor") or {}
    shares = hardware.get("other_programs") or {}
    measured = {"compute": compute_costs, "comm": comm_costs}
    loads = {name: {_LOAD: percent(share)} for name, share in shares.items() if share is not None}
    columns = [
        _measured_facts(costs) | _noise_facts(floors.get(name) or {}) | loads.get(name, {})
        for name, costs in measured.items()
    ]
    header = ["", "compute", "communication"]
    return [header, *([name, *(facts.get(name, MISSING) for facts in columns)] for name in columns[0] | columns[1])]


def _measured_facts(costs: pd.DataFrame) -> dict[str, str]:
    has_error = costs["error"].notna() & (costs["error"].astype(str) != "")
    known = costs[~has_error].dropna(subset=["forward_ms", "backward_ms"])
    facts = {
        "samples": f"{costs['sample_id'].nunique():,}",
        "samples that failed": f"{costs['sample_id'].nunique() - known['sample_id'].nunique():,}",
    }
    if known.empty:
        return facts
    if "repeats" in known:
        fewest, most = int(known["repeats"].min()), int(known["repeats"].max())
        facts["visits per sample"] = f"{fewest}" if fewest == most else f"{fewest} to {most}"
    for direction in ("forward", "backward"):
        low, middle, high = known[f"{direction}_ms"].quantile([0.05, 0.5, 0.95])
        facts[f"{direction} cost, ms: median"] = amount(middle)
        facts[f"{direction} cost, ms: 5th to 95th percentile"] = f"{amount(low)} to {amount(high)}"
    spread = (known["spread_ms"] / (known["forward_ms"] + known["backward_ms"])).dropna()
    if len(spread):
        facts["spread of visits: median"] = percent(float(spread.median()))
        facts["spread of visits: 90th percentile"] = percent(float(spread.quantile(0.9)))
    return facts


def _noise_facts(floor: Mapping[str, Any]) -> dict[str, str]:
    """Lines about a noise floor of the form `{samples, total: {median, p90}, ...}`; none if it is unknown."""
    total = floor.get("total") or {}
    names = {"median": "noise floor: median", "p90": "noise floor: 90th percentile"}
    shown = {names[key]: percent(float(total[key])) for key in names if total.get(key) is not None}
    return {"samples measured twice": str(floor.get("samples", MISSING)), **shown} if shown else {}


def busy_note(hardware: Mapping[str, Any]) -> str:
    """A sentence if other programs used many of the cores while the samples of a campaign were measured, or nothing."""
    return "".join(f"{caveat.capitalize()}." for caveat in busy_machine(hardware))


def failure_messages(compute_costs: pd.DataFrame, comm_costs: pd.DataFrame, most: int = 5) -> list[tuple[str, int]]:
    """The most frequent errors of failed samples, each with its number of rows."""
    errors = pd.concat([compute_costs["error"], comm_costs["error"]]).dropna().astype(str)
    counts = errors[errors != ""].value_counts()
    return [(str(message), int(count)) for message, count in counts.head(most).items()]


def task_table(totals: pd.DataFrame, sharders: Sequence[str]) -> list[list[str]]:
    """Header and one line per task: ranks, then every sharder's step in ms; a star marks the cheapest."""
    column = COST_COLUMNS[basis_of(totals)]
    lines = [["task", "ranks", *sharders]]
    for task_id, plans in totals.groupby("task_id", sort=False):
        costs = plans.set_index("sharder")[column].reindex(list(sharders))
        decimals = decimals_for([float(cost) for cost in costs.dropna()])
        cells = [fixed(None if pd.isna(cost) else float(cost), decimals) for cost in costs]
        marked = [f"{cell} *" if cost == costs.min() else cell for cell, cost in zip(cells, costs, strict=True)]
        lines.append([str(task_id), str(int(plans["world_size"].max())), *marked])
    return lines


def type_table(plans: pd.DataFrame) -> list[list[str]] | None:
    """Header and one line per sharder: how many tables of its plans have each sharding type.

    Returns:
        None if all tables are column-wise. A table with tiers counts only under the type of its first shard.
    """
    if (plans["sharding_type"] == "column_wise").all():
        return None
    tables = plans.groupby(["sharder", "task_id", "table"], sort=False)["sharding_type"].agg(["first", "size"])
    kind = tables["first"].mask((tables["first"] == "column_wise") & (tables["size"] == 1), "whole")
    counts = Counter(zip(tables.index.get_level_values("sharder"), kind, strict=True))
    shown = [name for name in _TYPE_COLUMNS if name in set(kind)]
    sharders = dict.fromkeys(plans["sharder"])
    lines = [[str(sharder), *(f"{counts[sharder, name]:,}" for name in shown)] for sharder in sharders]
    return [["sharder", *shown], *lines]


def nested_rows(value: Mapping[Any, Any], depth: int = 0) -> list[tuple[int, str, str]]:
    """A nested mapping as rows `(depth, key, text)`; the text is empty for a key with nested keys."""
    rows: list[tuple[int, str, str]] = []
    for key, item in value.items():
        has_mappings = isinstance(item, list) and bool(item) and all(isinstance(entry, Mapping) for entry in item)
        inner = dict(enumerate(item, start=1)) if has_mappings else item
        if isinstance(inner, Mapping):
            rows.append((depth, str(key), "" if inner else "none"))
            rows += nested_rows(inner, depth + 1)
        else:
            rows.append((depth, str(key), _text(inner)))
    return rows


def _text(item: Any) -> str:
    if item is None:
        return MISSING
    if isinstance(item, bool):
        return "yes" if item else "no"
    if isinstance(item, float):
        return f"{item:.6g}"
    if isinstance(item, int):
        return f"{item:,}" if abs(item) >= 10_000 else str(item)
    if isinstance(item, list | tuple):
        return ", ".join(_text(entry) for entry in item) or "none"
    return str(item)
