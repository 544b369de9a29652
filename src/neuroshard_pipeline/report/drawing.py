"""All figures of the report by name."""

from collections.abc import Callable, Mapping

import plotly.graph_objects as go

from neuroshard_pipeline.evaluation.totals import plan_totals
from neuroshard_pipeline.report import figures
from neuroshard_pipeline.report.facts import noise_floors, rank_noise_floors
from neuroshard_pipeline.report.inputs import ReportInputs
from neuroshard_pipeline.report.style import empty_figure
from neuroshard_pipeline.report.totals import example_task


def draw_figures(inputs: ReportInputs) -> dict[str, go.Figure]:
    """Every figure of `FIGURES`. A figure without data states why there is none."""
    return {name: draw(inputs) for name, draw in FIGURES.items()}


def _plan_picture(inputs: ReportInputs) -> go.Figure:
    example = example_task(plan_totals(inputs.plan_costs))
    if example is None:
        return empty_figure("Two plans of one task", "No task was solved by two sharders.")
    return figures.plan_picture(inputs.plans, inputs.plan_costs, inputs.sharding_tasks, *example)


#: Every figure of the report by name. The dataset of a figure is `report.<name>`.
FIGURES: Mapping[str, Callable[[ReportInputs], go.Figure]] = {
    "cost_per_sharder": lambda inputs: figures.cost_per_sharder(inputs.plan_costs),
    "cost_relative_to_best": lambda inputs: figures.cost_relative_to_best(inputs.plan_costs),
    "plan_picture": _plan_picture,
    "tiers": lambda inputs: figures.tiers_of_run(inputs.plans, inputs.plan_costs, inputs.sharding_tasks),
    "held_out_accuracy": lambda inputs: figures.held_out_accuracy(inputs.held_out, noise_floors(inputs.metrics)),
    "plan_accuracy": lambda inputs: figures.plan_accuracy(inputs.plan_costs),
    "rank_accuracy": lambda inputs: figures.rank_accuracy(inputs.plan_costs, rank_noise_floors(inputs.metrics)),
}
