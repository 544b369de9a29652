"""Tables as plain text, which runs print at their end."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from neuroshard_pipeline.evaluation.totals import STEP_COLUMNS, plan_totals
from neuroshard_pipeline.report import sharder_summary
from neuroshard_pipeline.report.formats import fixed

#: Parts of a step that the clock of a rank tells apart, and the predicted parts that make them up.
_SPANS = {
    "lookups, forward and backward": ("compute",),
    "input dist": ("input_dist",),
    "output dist and its backward, the module's own work": ("forward_comm", "backward_comm", "reduction", "module"),
}


def summary_table(summary: Mapping[str, Any]) -> str:
    """`search.summary` as aligned text: one line per sharder, the cheapest first, then comparisons and noise."""
    notes = [
        sharder_summary.cost_note(summary),
        *sharder_summary.comparison_notes(summary),
        sharder_summary.agreement_note(summary),
        sharder_summary.noise_note(summary["noise"], summary["num_common_tasks"]),
    ]
    table = aligned_table(sharder_summary.sharder_table(summary))
    return "\n".join([table, "", *(textwrap.fill(note, 90) for note in notes if note)])


def part_table(plan_costs: pd.DataFrame) -> str:
    """Predicted and measured parts of a step as aligned text: means over the ranks of all measured plans."""
    ranks = plan_costs.dropna(subset=["measured_step_ms"])
    lines = [["part of a step, mean over plans and ranks", "predicted ms", "measured ms"]]
    for name, parts in _SPANS.items():
        of_kinds = (ranks[[f"{kind}_{part}_ms" for part in parts]] for kind in ("predicted", "measured"))
        lines.append([name, *(fixed(float(own.astype(float).sum(axis=1).mean()), 2) for own in of_kinds)])
    steps = plan_totals(ranks)[STEP_COLUMNS].mean()
    lines.append(["the step, on the slowest rank", *(fixed(float(steps[name]), 2) for name in STEP_COLUMNS)])
    return aligned_table(lines)


def aligned_table(lines: Sequence[Sequence[str]]) -> str:
    """Header and lines as text: the first column is aligned to the left, the others to the right."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    shown = [
        "  ".join(
            [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]
        )
        for line in lines
    ]
    return "\n".join([shown[0], "  ".join("-" * width for width in widths), *shown[1:]])
