"""The report: one HTML page with everything in it, to be opened from a disk, mailed or printed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import resources
from typing import Any

import jinja2
import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from neuroshard_pipeline.report import figures
from neuroshard_pipeline.report.diagnostics import compute_errors, worst_samples
from neuroshard_pipeline.report.drawing import draw_figures
from neuroshard_pipeline.report.facts import (
    accuracy_table,
    attempt_failures,
    failure_messages,
    measurement_table,
    nested_rows,
    plan_accuracy_table,
    task_table,
)
from neuroshard_pipeline.report.inputs import ReportInputs
from neuroshard_pipeline.report.refinement import refinement_costs, refinement_errors, refinement_verdict
from neuroshard_pipeline.report.style import OURS
from neuroshard_pipeline.report.totals import basis, comparable, plan_totals, sharder_rows, typical_task
from neuroshard_pipeline.report.wording import cost_note, headline, pair_notes, sharder_table

#: Narrower than this a figure cannot be read; on a phone it scrolls sideways instead of shrinking.
_MIN_WIDTHS_PX = {
    "rank_accuracy": 930,
    "held_out_accuracy": 930,
    "errors_by_feature": 930,
    "calibration": 930,
    "cost_distributions": 620,
    "measurement_noise": 620,
    "reuse_comparison": 620,
    "pool_distributions": 620,
}
#: Room that a title takes in a figure of its own; on the page, titles are headings.
_TITLE_PX = 40
#: Figures that are easier to read when they do not take the whole column.
_MAX_WIDTHS_PX = {"plan_accuracy": 660}


@dataclass(frozen=True)
class Drawing:
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
    return render_page("report.html", **_context(inputs))


def render_page(template: str, **context: Any) -> str:
    """One self-contained page: a template with its variables, and style, script and Plotly."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_asset), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    return environment.get_template(template).render(
        css=_asset("report.css"), script=_asset("report.js"), plotly_js=get_plotlyjs(), **context
    )


def _context(inputs: ReportInputs) -> dict[str, Any]:
    """The variables of the template."""
    totals = plan_totals(inputs.plan_costs)
    rows = sharder_rows(inputs.summary)
    sharders = [row.sharder for row in rows]
    return {
        "written": datetime.now(UTC).strftime("%d %B %Y, %H:%M UTC").lstrip("0"),
        "ours": OURS,
        "headline": headline(inputs.summary),
        "cost_note": " ".join([cost_note(inputs.summary), *pair_notes(inputs.summary)]),
        "sharder_table": sharder_table(rows),
        "attempt_failures": attempt_failures(inputs.summary),
        "task_table": task_table(totals, sharders),
        "basis": basis(totals),
        "common_count": len(comparable(totals, sharders, basis(totals))),
        "task_count": inputs.sharding_tasks["task_id"].nunique(),
        "example": typical_task(totals),
        "accuracy_table": accuracy_table(inputs.metrics),
        "worst_samples": worst_samples(compute_errors(inputs.held_out, inputs.compute_samples, inputs.table_pool)),
        "plan_accuracy_table": plan_accuracy_table(inputs.summary),
        "refinement": _refinement(inputs.refinement),
        "measurement_table": measurement_table(inputs.compute_costs, inputs.comm_costs, inputs.hardware),
        "failures": failure_messages(inputs.compute_costs, inputs.comm_costs),
        # The noise floor stands in the table of measurements.
        "hardware_rows": nested_rows({key: inputs.hardware[key] for key in inputs.hardware if key != "noise_floor"}),
        "lineage_rows": nested_rows(inputs.lineage),
        "drawings": {name: drawing(name, figure) for name, figure in draw_figures(inputs).items()},
    }


def _refinement(summary: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the page shows of a refinement, or None where there was none."""
    if not summary:
        return None
    return {
        "run_id": summary["run_id"],
        "errors": refinement_errors(summary),
        "costs": refinement_costs(summary),
        "verdict": refinement_verdict(summary),
        "drawing": drawing("refinement", figures.refinement(summary)),
    }


def drawing(name: str, figure: go.Figure) -> Drawing:
    """Move the title into the page, where it can wrap on a narrow screen."""
    title = figure.layout.title.text
    height_px = int(figure.layout.height)
    spec = json.loads(figure.to_json())
    spec["layout"].pop("title", None)
    spec["layout"]["margin"]["t"] -= _TITLE_PX
    spec["layout"]["height"] = height_px - _TITLE_PX
    # "</script>" inside a name would end the script element that holds the data.
    text = json.dumps(spec, separators=(",", ":")).replace("<", "\\u003c")
    widths_px = _MIN_WIDTHS_PX.get(name, 0), _MAX_WIDTHS_PX.get(name, 0)
    return Drawing(name, title, text, spec["layout"]["height"], *widths_px)


def _asset(name: str) -> str:
    return resources.files("neuroshard_pipeline.report").joinpath(name).read_text(encoding="utf-8")
