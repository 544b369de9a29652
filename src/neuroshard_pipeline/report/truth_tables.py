"""The summary of the pipeline `truth` as rows of text."""

from collections.abc import Mapping
from typing import Any

from neuroshard_pipeline.report.formats import MISSING, fixed, percent, plural


def sharder_rows(summary: Mapping[str, Any]) -> list[list[str]]:
    """Header and one row per sharder: mean costs of its plans, and the ratio of our sharder's costs to these costs."""
    pairs = {pair["rival"]: pair for pair in summary["pairs"]}
    ours = next((pair["ours"] for pair in summary["pairs"]), "our sharder")
    rows = [["plans of", "predicted ms", "measured ms", f"{ours} / this row: predicted", "measured", "95 % interval"]]
    for name, costs in summary["sharders"].items():
        pair = pairs.get(name, {})
        interval = MISSING if pair.get("low") is None else f"{pair['low']:.3f}..{pair['high']:.3f}"
        cells = [fixed(costs[f"{basis}_ms"], 2) for basis in ("predicted", "measured")]
        rows.append([name, *cells, *(fixed(pair.get(key), 3) for key in ("predicted_ratio", "ratio")), interval])
    return rows


def part_rows(summary: Mapping[str, Any]) -> list[list[str]]:
    """Header and one row per part of a step."""
    parts = summary["parts"]
    total = {key: sum(found[key] or 0.0 for found in parts.values()) for key in ("predicted_ms", "measured_ms")}
    rows = [["part of a step, mean over plans and ranks", "predicted ms", "measured ms"]]
    for part, found in [*parts.items(), ("sum", total)]:
        rows.append([part, fixed(found["predicted_ms"], 2), fixed(found["measured_ms"], 2)])
    return rows


def agreement_notes(summary: Mapping[str, Any]) -> list[str]:
    """Lines below the tables: how well predicted and measured costs agree, and what was measured."""
    found, timing = summary["agreement"], summary["timing"]
    tasks = plural(summary["num_tasks"], "task")
    lost = [f"{name}: no plan for {count} of {tasks}" for name, count in summary["failures"].items()]
    error, noise = (MISSING if found[name] is None else percent(found[name]) for name in ("median_error", "noise"))
    return [
        *lost,
        f"Predicted / measured: median {fixed(found['median_ratio'], 3)}; median error of the prediction "
        f"{error}, over {found['plans']} different plans.",
        f"Kendall's tau within a task: {fixed(found['tau'], 2)} for predicted and measured costs; "
        f"{fixed(found['tau_of_halves'], 2)} for costs measured in even and in odd rounds, which differ by {noise} "
        "(median).",
        f"Costs are means over {plural(summary['num_common_tasks'], 'task')} on {summary['world_size']} ranks "
        f"({timing['backend']}). The cost of a plan is the quantile {timing['quantile']:g} of the slowest rank's steps "
        f"in {timing['rounds']} rounds of {timing['steps_per_round']} timed steps; the order of plans varies by round.",
    ]
