"""The table of sharders as plain text, for the end of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from neuroshard_pipeline.report.totals import sharder_rows
from neuroshard_pipeline.report.wording import cost_note, sharder_table

_GAP = "  "


def summary_table(summary: Mapping[str, Any]) -> str:
    """`search.summary` as aligned text: one line per sharder, cheapest first, and a line saying what is compared.

    Args:
        summary: `search.summary`.

    Returns:
        Lines of at most about 90 characters, without a newline at the end.
    """
    header, *rows = sharder_table(sharder_rows(summary))
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    rule = _GAP.join("-" * width for width in widths)
    lines = [_aligned(header, widths), rule, *(_aligned(row, widths) for row in rows)]
    return "\n".join([*lines, "", cost_note(summary)])


def _aligned(row: list[str], widths: list[int]) -> str:
    """Names to the left, numbers to the right."""
    first = row[0].ljust(widths[0])
    return _GAP.join([first, *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))])
