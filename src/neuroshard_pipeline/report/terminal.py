"""Tables as plain text, which runs print at their end."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from neuroshard_pipeline.evaluation.totals import PARTS
from neuroshard_pipeline.report.formats import fixed
from neuroshard_pipeline.report.sharder_summary import (
    agreement_note,
    comparison_notes,
    cost_note,
    noise_note,
    sharder_table,
)
from neuroshard_pipeline.report.style import PART_NAMES


def summary_table(summary: Mapping[str, Any]) -> str:
    """`search.summary` as aligned text: one line per sharder, the cheapest first, then comparisons and noise."""
    notes = [
        cost_note(summary),
        *comparison_notes(summary),
        agreement_note(summary),
        noise_note(summary["noise"], summary["num_common_tasks"]),
    ]
    return "\n".join([aligned_table(sharder_table(summary)), "", *(textwrap.fill(note, 90) for note in notes if note)])


def part_table(plan_costs: pd.DataFrame) -> str:
    """Predicted and measured parts of a step as aligned text: means over the ranks of all measured plans."""
    ranks = plan_costs.dropna(subset=["measured_step_ms"])
    lines = [["part of a step, mean over plans and ranks", "predicted ms", "measured ms"]]
    for part in PARTS:
        means = (ranks[f"{kind}_{part}_ms"].astype(float).fillna(0.0).mean() for kind in ("predicted", "measured"))
        lines.append([PART_NAMES[part], *(fixed(float(mean), 2) for mean in means)])
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
