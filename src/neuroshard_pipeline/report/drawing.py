"""Every figure of the report, by name."""

from __future__ import annotations

import plotly.graph_objects as go

from neuroshard_pipeline.report import figures
from neuroshard_pipeline.report.facts import noise_floors, rank_noise_floors
from neuroshard_pipeline.report.inputs import ReportInputs
from neuroshard_pipeline.report.totals import plan_totals, sharder_rows, typical_task

#: Names of all figures, in the order of the page.
FIGURES: tuple[str, ...] = (
    "cost_per_sharder",
    "cost_relative_to_best",
    "success_rates",
    "plan_picture",
    "held_out_accuracy",
    "errors_by_feature",
    "calibration",
    "plan_accuracy",
    "rank_accuracy",
    "cost_distributions",
    "measurement_noise",
    "reuse_comparison",
    "pool_distributions",
)


def draw_figures(inputs: ReportInputs) -> dict[str, go.Figure]:
    """Every figure of `FIGURES`; each stands alone, with title, units and legend.

    Where there is nothing to draw, as no task has two plans to set side by side, the figure says so in words.
    """
    plan_costs, metrics = inputs.plan_costs, inputs.metrics
    sharders = [row.sharder for row in sharder_rows(inputs.summary)]
    drawn = {
        "cost_per_sharder": figures.cost_per_sharder(plan_costs),
        "cost_relative_to_best": figures.cost_relative_to_best(plan_costs),
        "success_rates": figures.success_rates(inputs.sharding_tasks, inputs.plans, sharders),
        "plan_picture": _typical_plan(inputs),
        "held_out_accuracy": figures.held_out_accuracy(inputs.held_out, noise_floors(metrics)),
        "errors_by_feature": figures.errors_by_feature(
            inputs.held_out, inputs.compute_samples, inputs.table_pool, noise_floors(metrics).get("compute")
        ),
        "calibration": figures.calibration(inputs.held_out),
        "plan_accuracy": figures.plan_accuracy(plan_costs),
        "rank_accuracy": figures.rank_accuracy(plan_costs, rank_noise_floors(metrics)),
        "cost_distributions": figures.cost_distributions(inputs.compute_costs, inputs.comm_costs),
        "measurement_noise": figures.measurement_noise(inputs.compute_costs, inputs.comm_costs),
        "reuse_comparison": figures.reuse_comparison(inputs.reuse_comparison),
        "pool_distributions": figures.pool_distributions(inputs.table_pool),
    }
    return {name: drawn[name] for name in FIGURES}


def _typical_plan(inputs: ReportInputs) -> go.Figure:
    example = typical_task(plan_totals(inputs.plan_costs))
    if example is None:
        return figures.words("One task, before and after", "No task was solved by two sharders.")
    return figures.plan_picture(inputs.plans, inputs.plan_costs, inputs.sharding_tasks, *example)
