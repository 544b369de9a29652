"""The figure of the calibration of the cost models' predictions."""

from typing import Any

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from neuroshard_pipeline.cost_models.intervals import COVERAGE
from neuroshard_pipeline.report import style
from neuroshard_pipeline.report.diagnostics import calibration_rows

_MODEL_COLOURS = {"compute": "#0072B2", "comm_forward": "#E69F00", "comm_backward": "#009E73"}
_PANELS = ("Measured ÷ predicted cost", "Inside the 90 % interval", "Kendall's τ within the bucket")


def calibration(held_out: pd.DataFrame) -> go.Figure:
    """Measured ÷ predicted cost, coverage of the prediction intervals and Kendall's τ, all against predicted cost."""
    title = "Calibration of held-out predictions, by predicted cost"
    rows = calibration_rows(held_out)
    if rows.empty:
        return style.empty_figure(title, "No held-out prediction has a prediction interval.")
    figure = make_subplots(rows=1, cols=len(_PANELS), horizontal_spacing=0.08, subplot_titles=_PANELS)
    for model, own in rows.groupby("model", sort=False):
        above, below = own["ratio_high"] - own["ratio"], own["ratio"] - own["ratio_low"]
        quartiles = {"array": style.rounded(above), "arrayminus": style.rounded(below), "symmetric": False}
        standard_error = {"array": style.rounded(100 * own["coverage_error"])}
        lines = [
            _line(str(model), own, own["ratio"], quartiles, True),
            _line(str(model), own, 100 * own["coverage"], standard_error, False),
            _line(str(model), own, own["tau"], None, False),
        ]
        figure.add_traces(lines, rows=1, cols=[1, 2, 3])
    low, high = float(rows["predicted_ms"].min()) / 1.3, float(rows["predicted_ms"].max()) * 1.3
    figure.update_xaxes(style.log_axis(low, high), title_text="predicted cost, ms (median of the bucket)")
    for column, expected in ((1, 1.0), (2, 100 * COVERAGE)):
        figure.add_hline(y=expected, line=style.REFERENCE_LINE, row=1, col=column)
    for column, label in enumerate(("ratio", "samples, %", "τ"), start=1):
        figure.update_yaxes(title_text=label, row=1, col=column)
    style.styled(figure, title, height=430)
    figure.update_layout(margin={"t": 112}, legend={"y": 1.12})
    return figure


def _line(
    model: str, rows: pd.DataFrame, values: pd.Series, bars: dict[str, Any] | None, in_legend: bool
) -> go.Scatter:
    known = values.notna()
    return go.Scatter(
        x=style.rounded(rows.loc[known, "predicted_ms"]),
        y=style.rounded(values[known]),
        error_y={**bars, "width": 3, "thickness": 1} if bars else None,
        text=rows.loc[known, "samples"],
        mode="lines+markers",
        name=model.replace("_", " "),
        legendgroup=model,
        showlegend=in_legend,
        line={"color": _MODEL_COLOURS.get(model, style.MUTED), "width": 2},
        hovertemplate=f"{model}: %{{y:.4g}} at %{{x:.3g}} ms, %{{text}} samples<extra></extra>",
    )
