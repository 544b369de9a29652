"""Figures of predicted against measured costs: per plan, per rank, per held-out sample."""

import math
from collections.abc import Mapping

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from neuroshard_pipeline.evaluation.totals import PARTS_OF_ALL, plan_totals
from neuroshard_pipeline.report import style
from neuroshard_pipeline.report.totals import by_cost

_PANEL_PX = 370


def plan_accuracy(plan_costs: pd.DataFrame) -> go.Figure:
    """Predicted against measured step, one point per plan, coloured by sharder."""
    totals = plan_totals(plan_costs)
    names = {"measured_step_ms": "measured_ms", "predicted_step_ms": "predicted_ms"}
    known = totals.dropna(subset=list(names)).rename(columns=names)
    figure = make_subplots(rows=1, cols=1)
    _add_identity(figure, known, 1, 1)
    order = by_cost(totals)
    colours = style.sharder_colours(order)
    for sharder, plans in _by_sharder(known, order):
        figure.add_trace(_scatter(plans, sharder, plans["task_id"], colours[sharder]), row=1, col=1)
    figure.update_xaxes(title_text="measured step of the plan, ms")
    figure.update_yaxes(title_text="predicted step of the plan, ms")
    return _finished(figure, "Step of every plan, predicted against measured", 520, columns=1)


def rank_accuracy(plan_costs: pd.DataFrame, noise_floors: Mapping[str, float] | None = None) -> go.Figure:
    """Predicted against measured cost of every rank of every plan, one panel per part of the cost.

    Args:
        plan_costs: `search.plan_costs`; ranks without measurements are left out. A part that not every plan has gets a
            panel if it was measured for any.
        noise_floors: per part (`compute`, `backward_comm`, `forward_comm`), the relative difference of repeated
            measurements, drawn as a band around the line of perfect prediction.
    """
    floors = noise_floors or {}
    order = by_cost(plan_totals(plan_costs))
    colours = style.sharder_colours(order)
    parts = [
        part for part in style.PART_NAMES if part in PARTS_OF_ALL or plan_costs[f"measured_{part}_ms"].fillna(0).any()
    ]
    titles = [style.PART_NAMES[part].capitalize() for part in parts]
    figure = make_subplots(rows=1, cols=len(parts), subplot_titles=titles, horizontal_spacing=0.27 / len(parts))
    for column, part in enumerate(parts, start=1):
        names = {f"measured_{part}_ms": "measured_ms", f"predicted_{part}_ms": "predicted_ms"}
        ranks = plan_costs[["task_id", "sharder", "rank", *names]].rename(columns=names)
        ranks = ranks.dropna(subset=["measured_ms", "predicted_ms"])
        _add_identity(figure, ranks, 1, column, noise_floor=floors.get(part))
        for sharder, own in _by_sharder(style.thinned(ranks), order):
            where = own["task_id"].astype(str) + ", rank " + own["rank"].astype(str)
            figure.add_trace(_scatter(own, sharder, where, colours[sharder], in_legend=column == 1), row=1, col=column)
    height = _PANEL_PX + 60
    return _finished(figure, "Cost of every rank, predicted against measured", height, columns=len(parts))


def held_out_accuracy(held_out: pd.DataFrame, noise_floors: Mapping[str, float] | None = None) -> go.Figure:
    """Predicted against measured cost of samples that no model was trained on, on logarithmic axes.

    Args:
        held_out: `train.held_out`: `model, sample_id, measured_ms, predicted_ms`; one panel per model.
        noise_floors: per model, the relative difference of repeated measurements, drawn as a band.
    """
    floors = noise_floors or {}
    models = list(dict.fromkeys(held_out["model"].astype(str)))
    columns = min(max(len(models), 1), 3)
    rows = max(math.ceil(len(models) / columns), 1)
    titles = [model.replace("_", " ").capitalize() for model in models]
    figure = make_subplots(
        rows=rows, cols=columns, subplot_titles=titles or None, horizontal_spacing=0.09, vertical_spacing=0.16
    )
    for index, model in enumerate(models):
        row, column = index // columns + 1, index % columns + 1
        samples = held_out[held_out["model"] == model]
        known = samples[(samples["measured_ms"] > 0) & (samples["predicted_ms"] > 0)]
        _add_identity(figure, known, row, column, noise_floor=floors.get(model), log=True)
        drawn = style.thinned(known)
        trace = _scatter(drawn, "sample", drawn["sample_id"], "#0072B2", in_legend=False)
        figure.add_trace(trace, row=row, col=column)
    return _finished(figure, "Held-out samples, predicted against measured", _PANEL_PX * rows + 40, columns=columns)


def _by_sharder(frame: pd.DataFrame, order: list[str]) -> list[tuple[str, pd.DataFrame]]:
    """The rows of every sharder. The sharder with the cheapest plans is last, so that its points are drawn on top."""
    return [(name, frame[frame["sharder"] == name]) for name in reversed(order)]


def _scatter(frame: pd.DataFrame, name: str, hover: pd.Series, colour: str, *, in_legend: bool = True) -> go.Scatter:
    return go.Scatter(
        x=style.rounded(frame["measured_ms"]),
        y=style.rounded(frame["predicted_ms"]),
        mode="markers",
        name=name,
        legendgroup=name,
        showlegend=in_legend,
        text=hover,
        marker={"color": style.faded(colour, 0.65), "size": 6, "line": {"width": 0.5, "color": "#ffffff"}},
        hovertemplate=f"{name}: %{{text}}<br>measured %{{x:.4g}} ms<br>predicted %{{y:.4g}} ms<extra></extra>",
    )


def _add_identity(
    figure: go.Figure,
    costs: pd.DataFrame,
    row: int,
    column: int,
    *,
    noise_floor: float | None = None,
    log: bool = False,
) -> None:
    """Label the axes and add the line of perfect prediction, with the noise floor as a band around it."""
    figure.update_xaxes(title_text="measured ms", row=row, col=column)
    figure.update_yaxes(title_text="predicted ms", row=row, col=column)
    both = pd.concat([costs["measured_ms"], costs["predicted_ms"]])
    if both.empty:
        return
    low, high = (float(both.min()) / 1.15 if log else 0.0), float(both.max()) * (1.15 if log else 1.06)
    scale = style.log_axis(low, high) if log else {"range": [low, high]}
    figure.update_xaxes(scale, row=row, col=column)
    figure.update_yaxes(scale, row=row, col=column)
    traces = [_noise_band(low, high, noise_floor)] if noise_floor else []
    identity = {"line": style.REFERENCE_LINE, "name": "predicted = measured", "legendgroup": "identity"}
    for trace in [*traces, go.Scatter(x=[low, high], y=[low, high], **identity)]:
        trace.update(mode="lines", showlegend=column == 1 and row == 1, hoverinfo="skip")
        figure.add_trace(trace, row=row, col=column)


def _noise_band(low: float, high: float, noise_floor: float) -> go.Scatter:
    below, above = 1 - noise_floor, 1 + noise_floor
    return go.Scatter(
        x=[low, high, high, low],
        y=[low * below, high * below, high * above, low * above],
        fill="toself",
        line={"width": 0},
        fillcolor=style.faded(style.MUTED, 0.18),
        name="noise floor of the measurement",
        legendgroup="noise",
    )


def _finished(figure: go.Figure, title: str, height: int, *, columns: int) -> go.Figure:
    """The styled figure; the legend lies above the titles of the panels."""
    style.styled(figure, title, height=height)
    figure.update_layout(legend={"y": 1.02 if columns == 1 else 1.09, "traceorder": "reversed"}, margin={"t": 132})
    return figure
