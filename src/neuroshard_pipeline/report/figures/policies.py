"""Training progress of the learned sharders."""

import pandas as pd
import plotly.graph_objects as go

from neuroshard_pipeline.report.style import faded, sharder_colours, styled


def policy_training(progress: pd.DataFrame) -> go.Figure:
    """Predicted cost of a policy's plans by training step, relative to the cheapest greedy plan of each task."""
    figure = go.Figure()
    colours = sharder_colours(progress["policy"])
    for name, rows in progress.groupby("policy", sort=False):
        sampled = rows["cost_ratio"].rolling(10, min_periods=1).mean()
        validated = rows.dropna(subset="validation_ratio")
        colour = colours[str(name)]
        figure.add_scatter(
            x=rows["step"].tolist(),
            y=(100 * sampled).round(2).tolist(),
            name=f"{name}, training tasks, actions sampled",
            line={"color": faded(colour, 0.5), "width": 1},
        )
        figure.add_scatter(
            x=validated["step"].tolist(),
            y=(100 * validated["validation_ratio"]).round(2).tolist(),
            name=f"{name}, validation tasks, most probable actions",
            mode="lines+markers",
            line={"color": colour, "width": 2},
        )
    figure.add_hline(y=100, line={"dash": "dot"})
    figure.update_xaxes(title_text="training step")
    figure.update_yaxes(title_text="predicted cost, % of the cheapest greedy plan of each task")
    return styled(figure, "Training of the learned sharders: predicted cost of their plans", height=420)
