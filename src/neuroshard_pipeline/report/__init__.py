"""What a person looks at after a run: figures, the HTML report, and a table for the terminal."""

from neuroshard_pipeline.report.html import ReportInputs, render_report
from neuroshard_pipeline.report.terminal import summary_table

__all__ = ["ReportInputs", "render_report", "summary_table"]
