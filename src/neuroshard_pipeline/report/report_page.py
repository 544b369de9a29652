"""The report of a run as an HTML page."""

from typing import Any

from neuroshard_pipeline.evaluation.totals import plan_totals
from neuroshard_pipeline.report import facts, sharder_summary
from neuroshard_pipeline.report.drawing import draw_figures
from neuroshard_pipeline.report.inputs import ReportInputs
from neuroshard_pipeline.report.page import render_page
from neuroshard_pipeline.report.totals import example_task
from neuroshard_pipeline.search.plan_data import TIER_COLUMN


def render_report(inputs: ReportInputs) -> dict[str, Any]:
    """The figures by name; `report`, a self-contained HTML page that shows them. Of its 5 MB, Plotly takes 4.6 MB."""
    figures = draw_figures(inputs)
    return {**figures, "report": render_page("report.html", figures, **_comparison(inputs), **_evidence(inputs))}


def _comparison(inputs: ReportInputs) -> dict[str, Any]:
    """The template's variables that compare sharders and plans."""
    totals = plan_totals(inputs.plan_costs)
    summary = inputs.summary
    sharders = list(sharder_summary.ranked_costs(summary))
    return {
        "comparisons": " ".join(sharder_summary.comparison_notes(summary)),
        "noise_note": sharder_summary.noise_note(summary["noise"], summary["num_common_tasks"]),
        "busy_note": facts.busy_note(inputs.hardware),
        "judge": summary["judge"],
        "cost_note": f"{sharder_summary.cost_note(summary)} {sharder_summary.agreement_note(summary)}",
        "sharder_table": sharder_summary.sharder_table(summary),
        "attempt_failures": facts.attempt_failures(summary),
        "task_table": facts.task_table(totals, sharders),
        "type_table": facts.type_table(inputs.plans),
        "basis": summary["basis"],
        "common_count": summary["num_common_tasks"],
        "task_count": inputs.sharding_tasks["task_id"].nunique(),
        "example": example_task(totals),
        "has_tiers": TIER_COLUMN in inputs.plans,
    }


def _evidence(inputs: ReportInputs) -> dict[str, Any]:
    """The template's variables that describe cost models, measurements and versions."""
    return {
        "accuracy_table": facts.accuracy_table(inputs.metrics),
        "plan_accuracy_table": facts.plan_accuracy_table(inputs.summary),
        "measurement_table": facts.measurement_table(inputs.compute_costs, inputs.comm_costs, inputs.hardware),
        "failures": facts.failure_messages(inputs.compute_costs, inputs.comm_costs),
        # The measurement table already shows the noise floor and the share of other programs.
        "hardware_rows": facts.nested_rows(
            {key: inputs.hardware[key] for key in inputs.hardware if key not in {"noise_floor", "other_programs"}}
        ),
        "lineage_rows": facts.nested_rows(inputs.lineage),
    }
