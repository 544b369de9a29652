"""What refinement was worth, as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from neuroshard_pipeline.report.terminal import aligned_table
from neuroshard_pipeline.report.wording import NOTHING, number, percent

_PART_NAMES = {
    "compute": "compute",
    "comm_forward": "forward communication",
    "comm_backward": "backward communication",
}
#: Lines of `refine.summary`'s drift: what they are called, the campaign, the direction.
_DRIFTS = (
    ("compute_forward", "compute", "forward"),
    ("compute_backward", "compute", "backward"),
    ("comm_forward", "comm", "forward"),
    ("comm_backward", "comm", "backward"),
)
_DRIFT_NAMES = {**_PART_NAMES, "compute_forward": "forward lookups", "compute_backward": "backward lookups"}


def refinement_table(summary: Mapping[str, Any]) -> str:
    """`refine.summary` as aligned text: errors on chosen samples and costs of plans, before and after.

    Returns:
        Lines of at most about 100 characters, without a newline at the end.
    """
    samples = ", ".join(
        f"{entry['compute_samples']} shard sets and {entry['comm_samples']} collectives of {entry['plans']} plans"
        for entry in summary["rounds"]
    )
    return "\n".join(
        [
            f"measured and added: {samples}",
            f"drift of the machine when plans were measured: {refinement_drift(summary)}",
            "",
            aligned_table(refinement_errors(summary)),
            "",
            aligned_table(refinement_costs(summary)),
            "",
            refinement_verdict(summary),
        ]
    )


def refinement_drift(summary: Mapping[str, Any]) -> str:
    """By how much the median anchor had become dearer since the first campaign, in words."""
    found = [
        f"{_DRIFT_NAMES[part]} {_signed(drift['ratio'] - 1)}"
        for part, drift in (
            (part, summary["drift"].get(kind, {}).get(f"{direction}_ms")) for part, kind, direction in _DRIFTS
        )
        if drift is not None and drift["anchors"]
    ]
    return ", ".join(found) or "unknown, as no anchors were measured"


def refinement_errors(summary: Mapping[str, Any]) -> list[list[str]]:
    """Header and one line per cost: mean error and bias on samples of the models' own plans, and on those of all."""
    lines = [["error on chosen samples", "before", "bias", "after", "bias", "same samples: before", "after"]]
    before, after = (summary["errors"][side] for side in ("before", "after"))
    for part, name in _PART_NAMES.items():
        if part in before["chosen"] and part in after["chosen"]:
            own = [
                text
                for errors in (before["chosen"][part], after["chosen"][part])
                for text in (percent(errors["mape"]), _signed(errors["bias"]))
            ]
            lines.append([name, *own, *(percent(side["all"][part]["mape"]) for side in (before, after))])
    return lines


def refinement_costs(summary: Mapping[str, Any]) -> list[list[str]]:
    """Header and one line per sharder: mean measured embedding cost of the same tasks."""
    lines = [["measured plans", "tasks", "before, ms", "after, ms", "change", "95 % interval", "better", "worse"]]
    for sharder, values in summary["plans"].items():
        costs = [number(values[key], 3) for key in ("before_ms", "after_ms")]
        counts = [str(values[key]) for key in ("better", "worse")]
        lines.append(
            [sharder, str(values["tasks"]), *costs, _signed(values["change"]), _interval(values["interval"]), *counts]
        )
    return lines


def refinement_verdict(summary: Mapping[str, Any]) -> str:
    """In one sentence per sharder, whether measured plans became cheaper."""
    return " ".join(f"{sharder}: {_verdict(values)}." for sharder, values in summary["plans"].items())


def _verdict(values: Mapping[str, Any]) -> str:
    interval = values["interval"]
    if interval is None:
        return "too few measured tasks to tell"
    if interval[1] < 0:
        return "measured plans became cheaper"
    if interval[0] > 0:
        return "measured plans became dearer"
    return "no difference between measured plans that these tasks could show"


def _signed(value: float | None) -> str:
    return NOTHING if value is None else f"{100 * value:+.1f} %"


def _interval(interval: Sequence[float] | None) -> str:
    return NOTHING if interval is None else f"{100 * interval[0]:+.1f} to {100 * interval[1]:+.1f} %"
