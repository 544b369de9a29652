"""The report: one HTML page with everything in it, to be opened from a disk, mailed or printed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from typing import Any

import jinja2
import pandas as pd
import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from neuroshard_pipeline.report import figures
from neuroshard_pipeline.report.facts import (
    accuracy_table,
    attempt_failures,
    failure_messages,
    measurement_table,
    nested_rows,
    noise_floors,
    rank_noise_floors,
    task_table,
)
from neuroshard_pipeline.report.style import OURS
from neuroshard_pipeline.report.totals import basis, comparable, plan_totals, sharder_rows, typical_task
from neuroshard_pipeline.report.wording import cost_note, headline, sharder_table

#: Narrower than this a panel cannot be read; on a phone the figure scrolls sideways instead of shrinking.
_PANEL_MIN_PX = 310
#: Room that a title takes in a figure of its own; on the page, titles are headings.
_TITLE_PX = 40
#: Figures that are easier to read when they do not take the whole column.
_MAX_WIDTHS_PX = {"plan_accuracy": 660}


@dataclass(frozen=True)
class ReportInputs:
    """Everything that the report shows; every field is the dataset of the same name.

    Attributes:
        hardware: `measure.hardware`, any nested mapping.
        metrics: `train.metrics`, per model `mape, median_ape, r2, kendall_tau, noise_floor`.
        summary: `search.summary`.
        lineage: versions that went into the run and came out of it, any nested mapping.
        compute_costs: `measure.compute_costs`.
        comm_costs: `measure.comm_costs`.
        held_out: `train.held_out`: `model, sample_id, measured_ms, predicted_ms`.
        plans: `search.plans`.
        plan_costs: `search.plan_costs`.
        sharding_tasks: `augment.sharding_tasks`.
        table_pool: `augment.table_pool`.
        reuse_comparison: `augment.reuse_comparison`: `bin_label, source, quantity, cumulative_share`.
    """

    hardware: Mapping[str, Any]
    metrics: Mapping[str, Any]
    summary: Mapping[str, Any]
    lineage: Mapping[str, Any]
    compute_costs: pd.DataFrame
    comm_costs: pd.DataFrame
    held_out: pd.DataFrame
    plans: pd.DataFrame
    plan_costs: pd.DataFrame
    sharding_tasks: pd.DataFrame
    table_pool: pd.DataFrame
    reuse_comparison: pd.DataFrame


@dataclass(frozen=True)
class _Drawing:
    """A figure as the template needs it."""

    name: str
    title: str
    spec: str
    height_px: int
    min_width_px: int
    max_width_px: int


def render_report(inputs: ReportInputs) -> str:
    """The report as one self-contained HTML page: style, script, data and Plotly are all inside.

    Args:
        inputs: the contract datasets. Measured plan costs may be missing (the page then compares predictions and
            says so), sharders may have failed tasks, and there need not be a task that every sharder solved.

    Returns:
        The page, about 5 MB, of which Plotly is 4.6.
    """
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True)
    page = environment.from_string(_asset("report.html"))
    return page.render(
        css=_asset("report.css"),
        script=_asset("report.js"),
        plotly_js=get_plotlyjs(),
        **_context(inputs),
    )


def _context(inputs: ReportInputs) -> dict[str, Any]:
    """The variables of the template."""
    totals = plan_totals(inputs.plan_costs)
    rows = sharder_rows(inputs.summary)
    sharders = [row.sharder for row in rows]
    example = typical_task(totals)
    return {
        "written": datetime.now(UTC).strftime("%d %B %Y, %H:%M UTC").lstrip("0"),
        "ours": OURS,
        "headline": headline(inputs.summary),
        "cost_note": cost_note(inputs.summary),
        "sharder_table": sharder_table(rows),
        "attempt_failures": attempt_failures(inputs.summary),
        "task_table": task_table(totals, sharders),
        "basis": basis(totals),
        "common_count": len(comparable(totals, sharders, basis(totals))),
        "task_count": inputs.sharding_tasks["task_id"].nunique(),
        "example": example,
        "accuracy_table": accuracy_table(inputs.metrics),
        "measurement_table": measurement_table(inputs.compute_costs, inputs.comm_costs),
        "failures": failure_messages(inputs.compute_costs, inputs.comm_costs),
        "hardware_rows": nested_rows(inputs.hardware),
        "lineage_rows": nested_rows(inputs.lineage),
        "drawings": _drawings(inputs, sharders, example),
    }


def _drawings(inputs: ReportInputs, sharders: list[str], example: tuple[str, str, str] | None) -> dict[str, _Drawing]:
    drawn = {
        "cost_per_sharder": (figures.cost_per_sharder(inputs.plan_costs), 1),
        "cost_relative_to_best": (figures.cost_relative_to_best(inputs.plan_costs), 1),
        "success_rates": (figures.success_rates(inputs.sharding_tasks, inputs.plans, sharders), 1),
        "plan_accuracy": (figures.plan_accuracy(inputs.plan_costs), 1),
        "rank_accuracy": (figures.rank_accuracy(inputs.plan_costs, rank_noise_floors(inputs.metrics)), 3),
        "held_out_accuracy": (figures.held_out_accuracy(inputs.held_out, noise_floors(inputs.metrics)), 3),
        "cost_distributions": (figures.cost_distributions(inputs.compute_costs, inputs.comm_costs), 2),
        "measurement_noise": (figures.measurement_noise(inputs.compute_costs, inputs.comm_costs), 2),
        "reuse_comparison": (figures.reuse_comparison(inputs.reuse_comparison), 2),
        "pool_distributions": (figures.pool_distributions(inputs.table_pool), 2),
    }
    if example is not None:
        picture = figures.plan_picture(inputs.plans, inputs.plan_costs, inputs.sharding_tasks, *example)
        drawn["plan_picture"] = (picture, 1)
    return {name: _drawing(name, figure, panels) for name, (figure, panels) in drawn.items()}


def _drawing(name: str, figure: go.Figure, panels: int) -> _Drawing:
    """Move the title into the page, where it can wrap on a narrow screen."""
    title = figure.layout.title.text
    height_px = int(figure.layout.height)
    spec = json.loads(figure.to_json())
    spec["layout"].pop("title", None)
    spec["layout"]["margin"]["t"] -= _TITLE_PX
    spec["layout"]["height"] = height_px - _TITLE_PX
    # "</script>" inside a name would end the script element that holds the data.
    text = json.dumps(spec, separators=(",", ":")).replace("<", "\\u003c")
    min_width_px = panels * _PANEL_MIN_PX if panels > 1 else 0
    return _Drawing(name, title, text, spec["layout"]["height"], min_width_px, _MAX_WIDTHS_PX.get(name, 0))


def _asset(name: str) -> str:
    return resources.files("neuroshard_pipeline.report").joinpath(name).read_text(encoding="utf-8")
