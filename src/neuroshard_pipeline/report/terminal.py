"""Tables as plain text, which runs print at their end."""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from neuroshard_pipeline.report.sharder_summary import comparison_notes, cost_note, sharder_table


def summary_table(summary: Mapping[str, Any]) -> str:
    """`search.summary` as aligned text: one line per sharder, the cheapest first, then notes on the comparison."""
    notes = [textwrap.fill(note, 90) for note in (cost_note(summary), *comparison_notes(summary))]
    return "\n".join([aligned_table(sharder_table(summary)), "", *notes])


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
