"""Figures of the measured costs: how large they are, and how well repeated measurements of a sample (visits) agree."""

import itertools

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from neuroshard_pipeline.report.style import DIRECTION_COLOURS, faded, log_axis, rounded, styled, thinned

_PANELS = ("Compute: lookups of one rank", "Communication: all-to-all of one rank")


def cost_distributions(compute_costs: pd.DataFrame, comm_costs: pd.DataFrame) -> go.Figure:
    """Histograms of the measured forward and backward costs on a logarithmic axis.

    Args:
        compute_costs: `measure.compute_costs`; failed samples are left out.
        comm_costs: `measure.comm_costs`, one row per rank of a sample.
    """
    figure = make_subplots(rows=1, cols=2, subplot_titles=_PANELS, horizontal_spacing=0.1)
    for column, costs in enumerate((succeeded(compute_costs), succeeded(comm_costs)), start=1):
        edges = log_edges(pd.concat([costs[f"{direction}_ms"] for direction in DIRECTION_COLOURS]))
        for direction, colour in DIRECTION_COLOURS.items():
            trace = histogram(costs[f"{direction}_ms"], edges, direction, colour, "ms")
            trace.update(showlegend=column == 1)
            figure.add_trace(trace, row=1, col=column)
        figure.update_xaxes(log_axis(edges[0], edges[-1]), row=1, col=column)
    figure.update_xaxes(title_text="measured cost, ms")
    figure.update_yaxes(title_text="samples", rangemode="tozero", col=1)
    figure.update_yaxes(title_text="ranks of samples", rangemode="tozero", col=2)
    styled(figure, "Distribution of the measured costs", height=400)
    figure.update_layout(margin={"t": 112}, legend={"y": 1.1})
    return figure


def measurement_noise(compute_costs: pd.DataFrame, comm_costs: pd.DataFrame) -> go.Figure:
    """Scatter plots of the spread of a sample's visits against its cost, one point per row of costs.

    The spread is `spread_ms` as a share of forward + backward cost. Rows with a single visit are left out. If there are
    too many rows, only every n-th is drawn.

    Args:
        compute_costs: `measure.compute_costs`; failed samples are left out.
        comm_costs: `measure.comm_costs`, one row per rank of a sample.
    """
    figure = make_subplots(rows=1, cols=2, subplot_titles=_PANELS, horizontal_spacing=0.1)
    for column, costs in enumerate((succeeded(compute_costs), succeeded(comm_costs)), start=1):
        costs = costs.dropna(subset=["spread_ms"])
        drawn = thinned(costs)
        cost_ms = drawn["forward_ms"] + drawn["backward_ms"]
        trace = go.Scatter(
            x=rounded(cost_ms),
            y=rounded(100 * relative_spread(drawn)),
            text=drawn["sample_id"],
            mode="markers",
            showlegend=False,
            marker={"color": faded("#0072B2", 0.5), "size": 5},
            hovertemplate="%{text}: %{x:.4g} ms, spread %{y:.2g} %<extra></extra>",
        )
        figure.add_trace(trace, row=1, col=column)
        if len(costs):
            figure.update_xaxes(log_axis(cost_ms.min() / 1.15, cost_ms.max() * 1.15), row=1, col=column)
            median = float(100 * relative_spread(costs).median())
            label = {"text": f"median {median:.1f} %", "bgcolor": "rgba(255,255,255,0.8)"}
            figure.add_hline(y=median, line={"dash": "dot", "width": 1}, annotation=label, row=1, col=column)
    figure.update_xaxes(title_text="forward + backward cost, ms")
    figure.update_yaxes(title_text="spread of repeats, % of the cost", rangemode="tozero", col=1)
    figure.update_yaxes(rangemode="tozero", col=2)
    styled(figure, "Agreement of repeated measurements", height=400)
    return figure


def succeeded(costs: pd.DataFrame) -> pd.DataFrame:
    """The rows that have no error and both costs."""
    has_error = costs["error"].notna() & (costs["error"].astype(str) != "")
    return costs[~has_error].dropna(subset=["forward_ms", "backward_ms"])


def relative_spread(costs: pd.DataFrame) -> pd.Series:
    """`spread_ms` as a share of forward + backward cost."""
    return costs["spread_ms"] / (costs["forward_ms"] + costs["backward_ms"])


def log_edges(values: pd.Series, bins: int = 40) -> np.ndarray:
    """Edges of `bins` bins that have equal width on a logarithmic axis and contain every positive value."""
    positive = values[values > 0]
    if positive.empty:
        return np.array([0.1, 1.0])
    low, high = float(positive.min()), float(positive.max())
    return np.geomspace(low * 0.999, max(high, low * 1.02) * 1.001, bins + 1)


def histogram(values: pd.Series, edges: np.ndarray, name: str, colour: str, unit: str) -> go.Bar:
    """Bars with the number of values per bin. Plotly has no logarithmic bins, so the values are binned here."""
    counts, _ = np.histogram(values.dropna(), bins=edges)
    spans = [f"{low:.3g} to {high:.3g} {unit}" for low, high in itertools.pairwise(edges)]
    return go.Bar(
        x=[float(f"{middle:.5g}") for middle in np.sqrt(edges[:-1] * edges[1:])],
        y=counts.tolist(),
        width=[float(f"{width:.5g}") for width in np.diff(edges)],
        name=name,
        customdata=spans,
        marker={"color": faded(colour, 0.55), "line": {"width": 0}},
        hovertemplate=f"{name}: %{{y}} with %{{customdata}}<extra></extra>",
    )
