"""How the learned rivals learned."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from neuroshard_pipeline.report.style import faded, sharder_colours, styled

#: Steps whose mean a point of the curve is.
_WINDOW = 10


def policy_training(progress: pd.DataFrame) -> go.Figure:
    """Predicted cost by step of training, relative to the best greedy heuristic.

    Args:
        progress: `policies.progress`: `policy, step, reward, entropy, cost_ratio, validation_ratio`.
    """
    figure = go.Figure()
    colours = sharder_colours(progress["policy"])
    for name, rows in progress.groupby("policy", sort=False):
        drawn, checked = (
            rows["cost_ratio"].rolling(_WINDOW, min_periods=1).mean(),
            rows.dropna(subset="validation_ratio"),
        )
        colour = colours[str(name)]
        figure.add_scatter(
            x=rows["step"].tolist(),
            y=(100 * drawn).round(2).tolist(),
            name=f"{name}, single draws on training tasks",
            line={"color": faded(colour, 0.5), "width": 1},
        )
        figure.add_scatter(
            x=checked["step"].tolist(),
            y=(100 * checked["validation_ratio"]).round(2).tolist(),
            name=f"{name}, highest scores on validation tasks",
            mode="lines+markers",
            line={"color": colour, "width": 2},
        )
    figure.add_hline(y=100, line={"dash": "dot"})
    figure.update_xaxes(title_text="step")
    figure.update_yaxes(title_text="predicted cost, % of the best greedy heuristic's")
    return styled(figure, "How the learned rivals learned", height=420)
