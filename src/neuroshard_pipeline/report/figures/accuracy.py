"""Figures of predicted against measured costs: per plan, per rank, per held-out sample."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from neuroshard_pipeline.report.style import INK, MUTED, PART_NAMES, faded, log_axis, sharder_colours, styled
from neuroshard_pipeline.report.totals import PARTS, by_cost, plan_totals

#: More points than this make a page heavy without showing more; every n-th one is drawn instead.
MAX_POINTS = 1200

_PANEL_PX = 370


def plan_accuracy(plan_costs: pd.DataFrame) -> go.Figure:
    """Predicted against measured embedding cost, one point per plan, coloured by sharder.

    Args:
        plan_costs: `search.plan_costs`; plans without measurements are left out.
    """
    totals = plan_totals(plan_costs)
    known = totals.dropna(subset=["measured_ms", "predicted_ms"])
    figure = make_subplots(rows=1, cols=1)
    _add_identity(figure, known["measured_ms"], known["predicted_ms"], None, 1)
    order = by_cost(totals)
    colours = sharder_colours(order)
    for sharder, plans in _by_sharder(known, order):
        figure.add_trace(_scatter(plans, sharder, plans["task_id"], colours[sharder]), row=1, col=1)
    _label(figure, "embedding cost of the plan, ms", 1)
    styled(figure, "Embedding cost of every plan, predicted against measured", height=520)
    return _legend(figure, columns=1)


def rank_accuracy(plan_costs: pd.DataFrame, noise_floors: Mapping[str, float] | None = None) -> go.Figure:
    """Predicted against measured cost of every rank of every plan, one panel per part of the cost.

    Args:
        plan_costs: `search.plan_costs`; ranks without measurements are left out.
        noise_floors: per part (`compute`, `backward_comm`, `forward_comm`), the relative error that repeating the
            measurement has by itself, drawn as a band around the line of perfect prediction.
    """
    floors = noise_floors or {}
    order = by_cost(plan_totals(plan_costs))
    colours = sharder_colours(order)
    titles = [PART_NAMES[part].capitalize() for part in PARTS]
    figure = make_subplots(rows=1, cols=len(PARTS), subplot_titles=titles, horizontal_spacing=0.09)
    for column, part in enumerate(PARTS, start=1):
        names = {f"measured_{part}_ms": "measured_ms", f"predicted_{part}_ms": "predicted_ms"}
        ranks = plan_costs[["task_id", "sharder", "rank", *names]].rename(columns=names)
        ranks = ranks.dropna(subset=["measured_ms", "predicted_ms"])
        _add_identity(figure, ranks["measured_ms"], ranks["predicted_ms"], floors.get(part), column)
        for sharder, own in _by_sharder(_thinned(ranks), order):
            where = own["task_id"].astype(str) + ", rank " + own["rank"].astype(str)
            figure.add_trace(_scatter(own, sharder, where, colours[sharder], in_legend=column == 1), row=1, col=column)
        _label(figure, "ms", column)
    styled(figure, "Cost of every rank, predicted against measured", height=_PANEL_PX + 60)
    return _legend(figure, columns=len(PARTS))


def held_out_accuracy(held_out: pd.DataFrame, noise_floors: Mapping[str, float] | None = None) -> go.Figure:
    """Predicted against measured cost of samples that no model was trained on, on logarithmic axes.

    Args:
        held_out: `train.held_out`: `model, sample_id, measured_ms, predicted_ms`; one panel per model.
        noise_floors: per model, the relative error that repeating the measurement has by itself.
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
        floor = floors.get(model)
        _add_identity(figure, known["measured_ms"], known["predicted_ms"], floor, column, row, log=True)
        drawn = _thinned(known)
        trace = _scatter(drawn, "sample", drawn["sample_id"], "#0072B2", in_legend=False)
        figure.add_trace(trace, row=row, col=column)
        _label(figure, "ms", column, row)
    styled(figure, "Held-out samples, predicted against measured", height=_PANEL_PX * rows + 40)
    return _legend(figure, columns=columns)


def _by_sharder(frame: pd.DataFrame, order: list[str]) -> list[tuple[str, pd.DataFrame]]:
    """Rows of every sharder, the cheapest sharder last so that it is drawn on top."""
    return [(name, frame[frame["sharder"] == name]) for name in reversed(order)]


def _thinned(frame: pd.DataFrame) -> pd.DataFrame:
    """Every n-th row, at most `MAX_POINTS`."""
    return frame.iloc[:: max(math.ceil(len(frame) / MAX_POINTS), 1)]


def _scatter(frame: pd.DataFrame, name: str, hover: pd.Series, colour: str, *, in_legend: bool = True) -> go.Scatter:
    return go.Scatter(
        x=_short(frame["measured_ms"]),
        y=_short(frame["predicted_ms"]),
        mode="markers",
        name=name,
        legendgroup=name,
        showlegend=in_legend,
        text=hover,
        marker={"color": faded(colour, 0.65), "size": 6, "line": {"width": 0.5, "color": "#ffffff"}},
        hovertemplate=f"{name}: %{{text}}<br>measured %{{x:.4g}} ms<br>predicted %{{y:.4g}} ms<extra></extra>",
    )


def _short(values: pd.Series) -> list[float]:
    """Four significant digits: the eye sees no more, and the page stays small."""
    return [float(f"{value:.4g}") for value in values]


def _add_identity(
    figure: go.Figure,
    measured: pd.Series,
    predicted: pd.Series,
    noise_floor: float | None,
    column: int,
    row: int = 1,
    *,
    log: bool = False,
) -> None:
    """The line of perfect prediction over the range of the data, with the noise floor as a band around it."""
    both = pd.concat([measured, predicted])
    if both.empty:
        return
    low, high = (float(both.min()) / 1.15 if log else 0.0), float(both.max()) * (1.15 if log else 1.06)
    scale = log_axis(low, high) if log else {"range": [low, high]}
    figure.update_xaxes(scale, row=row, col=column)
    figure.update_yaxes(scale, row=row, col=column)
    if noise_floor:
        edges = [low * (1 - noise_floor), high * (1 - noise_floor), high * (1 + noise_floor), low * (1 + noise_floor)]
        band = go.Scatter(
            x=[low, high, high, low],
            y=edges,
            fill="toself",
            mode="lines",
            line={"width": 0},
            fillcolor=faded(MUTED, 0.18),
            name="noise floor of the measurement",
            legendgroup="noise",
            showlegend=column == 1 and row == 1,
            hoverinfo="skip",
        )
        figure.add_trace(band, row=row, col=column)
    line = go.Scatter(
        x=[low, high],
        y=[low, high],
        mode="lines",
        line={"color": INK, "width": 1, "dash": "dot"},
        name="predicted = measured",
        legendgroup="identity",
        showlegend=column == 1 and row == 1,
        hoverinfo="skip",
    )
    figure.add_trace(line, row=row, col=column)


def _label(figure: go.Figure, unit: str, column: int, row: int = 1) -> None:
    figure.update_xaxes(title_text=f"measured {unit}", row=row, col=column)
    figure.update_yaxes(title_text=f"predicted {unit}", row=row, col=column)


def _legend(figure: go.Figure, columns: int) -> go.Figure:
    """The legend above the panels and their titles."""
    figure.update_layout(legend={"y": 1.02 if columns == 1 else 1.09, "traceorder": "reversed"}, margin={"t": 132})
    return figure
