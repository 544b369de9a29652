"""One function per figure: it takes datasets (`tiers_picture`: a plan) and returns a figure with title and units.

Arguments have the names of datasets (`report.inputs.ReportInputs`). Plans, ranks and samples without a measurement, and
models without prediction intervals, are left out of figures that need them.
"""

from neuroshard_pipeline.report.figures.accuracy import held_out_accuracy, plan_accuracy, rank_accuracy
from neuroshard_pipeline.report.figures.plan import pictures, plan_picture, sent_bytes
from neuroshard_pipeline.report.figures.sharders import cost_per_sharder, cost_relative_to_best
from neuroshard_pipeline.report.figures.tiers import tiers_of_run, tiers_picture

__all__ = [
    "cost_per_sharder",
    "cost_relative_to_best",
    "held_out_accuracy",
    "pictures",
    "plan_accuracy",
    "plan_picture",
    "rank_accuracy",
    "sent_bytes",
    "tiers_of_run",
    "tiers_picture",
]
