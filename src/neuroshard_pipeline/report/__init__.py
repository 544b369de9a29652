"""Figures, HTML pages and terminal tables that show the results of a run.

| module | content |
| --- | --- |
| `inputs` | `ReportInputs`, the data that the report shows |
| `drawing`, `figures/` | `FIGURES`, all figures of the report by name |
| `report_page` | the HTML page; `page` fills its template, an `.html` file |
| `sharder_summary`, `benchmark_table`, `facts`, `diagnostics` | tables and sentences of the pages |
| `terminal`, `replan_tables` | aligned text tables |
| `totals`, `formats`, `style` | costs relative to the cheapest plan, numbers as text, colours and axes |
"""

from neuroshard_pipeline.report.benchmark_table import benchmark_table
from neuroshard_pipeline.report.drawing import FIGURES, draw_figures
from neuroshard_pipeline.report.inputs import ReportInputs
from neuroshard_pipeline.report.report_page import render_report
from neuroshard_pipeline.report.terminal import aligned_table, part_table, summary_table

__all__ = [
    "FIGURES",
    "ReportInputs",
    "aligned_table",
    "benchmark_table",
    "draw_figures",
    "part_table",
    "render_report",
    "summary_table",
]
