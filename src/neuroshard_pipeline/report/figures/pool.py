"""The figure of the table pool: reuse of rows compared with the published data."""

from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from neuroshard_pipeline.report.style import styled

_QUANTITY_NAMES = {"unique_rows": "unique rows", "indices": "lookups"}
_SOURCE_NAMES = {"published": "published dlrm_datasets", "drawn": "this pool"}
_SOURCE_LINES = ({"color": "#1f2933", "dash": "solid"}, {"color": "#D55E00", "dash": "dot"})


def reuse_comparison(comparison: pd.DataFrame) -> go.Figure:
    """Cumulative reuse histograms of the pool and of the published data, one panel per quantity."""
    names = {name: _QUANTITY_NAMES.get(name, name) for name in dict.fromkeys(comparison["quantity"])}
    titles = [f"Share of {name}" for name in names.values()]
    figure = make_subplots(rows=1, cols=len(names), subplot_titles=titles, horizontal_spacing=0.1)
    for column, (quantity, name) in enumerate(names.items(), start=1):
        here = comparison[comparison["quantity"] == quantity]
        for style, (source, bins) in zip(_SOURCE_LINES, here.groupby("source", sort=False), strict=True):
            line = _reuse_line(bins, str(source), style)
            line.update(showlegend=column == 1)
            figure.add_trace(line, row=1, col=column)
        figure.update_yaxes(title_text=f"{name}, cumulative %", row=1, col=column)
    figure.update_xaxes(title_text="lookups of the same row in one batch", tickangle=-60, tickfont={"size": 11})
    figure.update_xaxes(type="category")  # Plotly would read "3-4" as a date.
    figure.update_yaxes(range=[0, 103])
    styled(figure, "Reuse of rows within a batch: this pool and the published data", height=460)
    figure.update_layout(margin={"t": 116}, legend={"y": 1.1})
    return figure


def _reuse_line(bins: pd.DataFrame, source: str, line: dict[str, Any]) -> go.Scatter:
    name = _SOURCE_NAMES.get(source, source)
    return go.Scatter(
        x=bins["bin_label"].tolist(),
        y=(100 * bins["cumulative_share"]).round(2).tolist(),
        name=name,
        legendgroup=name,
        mode="lines+markers",
        line={"width": 2, **line},
        marker={"size": 5},
        hovertemplate=f"{name}, %{{x}} lookups: %{{y:.1f}} %<extra></extra>",
    )
