"""Nodes of the report stage."""

from __future__ import annotations

from typing import Any

import pandas as pd
import plotly.graph_objects as go

from neuroshard_pipeline.report import ReportInputs, draw_figures, render_report

Json = dict[str, Any]


def gather(
    hardware: Json,
    metrics: Json,
    summary: Json,
    lineage: Json,
    compute_costs: pd.DataFrame,
    comm_costs: pd.DataFrame,
    held_out: pd.DataFrame,
    plans: pd.DataFrame,
    plan_costs: pd.DataFrame,
    sharding_tasks: pd.DataFrame,
    table_pool: pd.DataFrame,
    reuse_comparison: pd.DataFrame,
    compute_samples: pd.DataFrame,
    refinement: Json,
) -> ReportInputs:
    """Everything that the report shows."""
    return ReportInputs(
        hardware,
        metrics,
        summary,
        lineage,
        compute_costs,
        comm_costs,
        held_out,
        plans,
        plan_costs,
        sharding_tasks,
        table_pool,
        reuse_comparison,
        compute_samples,
        refinement,
    )


def draw(inputs: ReportInputs) -> dict[str, go.Figure]:
    """Every figure by name."""
    return draw_figures(inputs)


def render(inputs: ReportInputs) -> str:
    """The page."""
    return render_report(inputs)
