"""Before and after a refinement: errors on chosen samples, costs of measured plans."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from neuroshard_pipeline.report.style import INK, faded, sharder_colours, styled

_SIDE_COLOURS = {"before": "#8c96a0", "after": "#D55E00"}
_PART_NAMES = {"compute": "compute", "comm_forward": "forward comm.", "comm_backward": "backward comm."}


def refinement(summary: Mapping[str, Any]) -> go.Figure:
    """Left, the mean error on samples that the models' own plans contain; right, the change of every measured plan.

    Args:
        summary: `refine.summary`.
    """
    titles = ["Error on chosen samples, %", "Measured cost of plans, after against before, %"]
    figure = make_subplots(rows=1, cols=2, subplot_titles=titles, horizontal_spacing=0.1)
    for side in _SIDE_COLOURS:
        figure.add_trace(_error_bars(summary["errors"][side]["chosen"], side), row=1, col=1)
    colours = sharder_colours(summary["plans"])
    for sharder, values in summary["plans"].items():
        figure.add_trace(_changes(values, sharder, colours[sharder]), row=1, col=2)
        if values["interval"] is not None:
            figure.add_trace(_mean_change(values, sharder), row=1, col=2)
    figure.update_yaxes(rangemode="tozero", row=1, col=1)
    figure.add_hline(y=0, line={"color": INK, "width": 1, "dash": "dot"}, row=1, col=2)
    styled(figure, "What refinement was worth", height=430)
    return figure.update_layout(margin={"t": 132}, legend={"y": 1.12})


def _error_bars(errors: Mapping[str, Mapping[str, float]], side: str) -> go.Bar:
    parts = [part for part in _PART_NAMES if part in errors]
    return go.Bar(
        x=[_PART_NAMES[part] for part in parts],
        y=[_percent(errors[part]["mape"]) for part in parts],
        name=side,
        marker={"color": _SIDE_COLOURS[side]},
        hovertemplate=f"{side}: %{{y:.2f}} %<extra></extra>",
    )


def _changes(values: Mapping[str, Any], sharder: str, colour: str) -> go.Box:
    """One point per task."""
    changes = values["changes"]
    return go.Box(
        x=[sharder] * len(changes),
        y=[_percent(change) for change in changes.values()],
        text=list(changes),
        name=sharder,
        showlegend=False,
        boxpoints="all",
        jitter=0.5,
        pointpos=0,
        marker={"color": faded(colour, 0.65), "size": 6},
        line={"width": 0},
        fillcolor="rgba(0,0,0,0)",
        hovertemplate="%{text}: %{y:+.2f} %<extra></extra>",
    )


def _mean_change(values: Mapping[str, Any], sharder: str) -> go.Scatter:
    """The mean over tasks with its interval."""
    low, high = (_percent(edge) for edge in values["interval"])
    mean = _percent(values["change"])
    return go.Scatter(
        x=[sharder],
        y=[mean],
        error_y={"array": [high - mean], "arrayminus": [mean - low], "color": INK, "thickness": 2, "width": 12},
        mode="markers",
        marker={"color": INK, "size": 10, "symbol": "line-ew-open"},
        name="mean and its 95 % interval",
        legendgroup="mean",
        showlegend=False,
        hovertemplate=f"mean %{{y:+.2f}} %, 95 % interval {low:+.2f} to {high:+.2f} %<extra></extra>",
    )


def _percent(share: float) -> float:
    return float(f"{100 * share:.4g}")
