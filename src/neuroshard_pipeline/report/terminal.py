"""The table of sharders as plain text, for the end of a run."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from neuroshard_pipeline.report.totals import sharder_rows
from neuroshard_pipeline.report.wording import cost_note, pair_notes, sharder_table

_GAP = "  "
_WIDTH = 90


def summary_table(summary: Mapping[str, Any]) -> str:
    """`search.summary` as aligned text: one line per sharder, cheapest first, and what can be said of it.

    Args:
        summary: `search.summary`.

    Returns:
        Lines of at most about 90 characters, without a newline at the end.
    """
    notes = [textwrap.fill(note, _WIDTH) for note in (cost_note(summary), *pair_notes(summary))]
    return "\n".join([aligned_table(sharder_table(sharder_rows(summary))), "", *notes])


def aligned_table(lines: Sequence[Sequence[str]]) -> str:
    """Header and lines as aligned text: names to the left, numbers to the right."""
    header, *rows = lines
    widths = [max(len(row[column]) for row in lines) for column in range(len(header))]
    rule = _GAP.join("-" * width for width in widths)
    return "\n".join([_aligned(header, widths), rule, *(_aligned(row, widths) for row in rows)])


def _aligned(row: Sequence[str], widths: Sequence[int]) -> str:
    """Names to the left, numbers to the right."""
    first = row[0].ljust(widths[0])
    return _GAP.join([first, *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))])
