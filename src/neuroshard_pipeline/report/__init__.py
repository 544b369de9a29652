"""What a person looks at after a run: figures, the HTML report, and a table for the terminal."""

from neuroshard_pipeline.report.benchmark_page import render_benchmark
from neuroshard_pipeline.report.drawing import FIGURES, draw_figures
from neuroshard_pipeline.report.html import render_report
from neuroshard_pipeline.report.inputs import ReportInputs
from neuroshard_pipeline.report.refinement import refinement_table
from neuroshard_pipeline.report.terminal import summary_table

__all__ = [
    "FIGURES",
    "ReportInputs",
    "draw_figures",
    "refinement_table",
    "render_benchmark",
    "render_report",
    "summary_table",
]
