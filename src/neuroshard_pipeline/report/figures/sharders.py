"""Figures that compare sharders: mean cost, and cost relative to the cheapest plan."""

import pandas as pd
import plotly.graph_objects as go

from neuroshard_pipeline.evaluation.totals import COST_COLUMNS, basis_of, cost_table, plan_totals
from neuroshard_pipeline.report import style
from neuroshard_pipeline.report.formats import amount, plural
from neuroshard_pipeline.report.totals import by_cost, relative_to_best


def cost_per_sharder(plan_costs: pd.DataFrame) -> go.Figure:
    """Mean step of each sharder as a bar, and one point per task, for the tasks with costs of all sharders."""
    totals = plan_totals(plan_costs)
    basis = basis_of(totals)
    sharders = by_cost(totals)
    costs = cost_table(totals, sharders, COST_COLUMNS[basis]).dropna()
    if len(costs):
        sharders = [str(name) for name in costs.mean().sort_values(kind="stable").index]
    colours = style.sharder_colours(sharders)
    figure = go.Figure()
    for name in sharders:
        label = style.emphasised(name)
        if len(costs):
            label += f"<br>{amount(float(costs[name].mean()))} ms"
            figure.add_bar(
                x=[float(costs[name].mean())],
                y=[label],
                orientation="h",
                marker_color=style.bar_colour(name, colours[name]),
                hovertemplate=f"{name}: mean %{{x:.4g}} ms<extra></extra>",
            )
        figure.add_trace(_points(costs[name], label, style.INK, "%{text}: %{x:.4g} ms"))
    if costs.empty:
        style.with_message(figure, "No task has a cost of every sharder.")
    title = f"{basis.capitalize()} step, mean over {plural(len(costs), 'task')} with costs of every sharder"
    figure.update_xaxes(title_text=f"{basis} step, ms", rangemode="tozero")
    return _rows(figure, title, len(sharders))


def cost_relative_to_best(plan_costs: pd.DataFrame) -> go.Figure:
    """Step of every plan divided by that of the cheapest plan of its task, as points and boxes."""
    totals = plan_totals(plan_costs)
    basis = basis_of(totals)
    relative = relative_to_best(totals, basis)
    sharders = by_cost(totals)
    colours = style.sharder_colours(sharders)
    figure = go.Figure()
    for name in sharders:
        own = relative[relative["sharder"] == name].set_index("task_id")["relative"]
        points = _points(own, style.emphasised(name), colours[name], "%{text}: %{x:.3f} times the cheapest plan")
        points.update(line={"width": 1.4, "color": colours[name]}, fillcolor=style.faded(colours[name], 0.18))
        figure.add_trace(points)
    figure.add_vline(x=1, line=style.REFERENCE_LINE)
    figure.update_xaxes(title_text=f"{basis} step / step of the cheapest plan")
    return _rows(figure, "Cost of every plan relative to the cheapest plan of its task", len(sharders))


def _points(costs: pd.Series, label: str, colour: str, hover: str) -> go.Box:
    """One point per task in the row `label`; the box is invisible unless the caller gives it a line."""
    return go.Box(
        x=costs.round(5),
        y=[label] * len(costs),
        text=costs.index,
        orientation="h",
        boxpoints="all",
        jitter=0.55,
        pointpos=0,
        width=0.6,
        marker={"color": colour, "size": 5, "opacity": 0.7, "line": {"width": 0.5, "color": "#ffffff"}},
        line={"width": 0},
        fillcolor="rgba(0,0,0,0)",
        hoveron="points",
        hovertemplate=hover + "<extra></extra>",
    )


def _rows(figure: go.Figure, title: str, count: int) -> go.Figure:
    """Lay out and return the figure: `count` rows from the top down, each labelled with its sharder; no legend."""
    style.styled(figure, title, height=150 + 46 * max(count, 2))
    figure.update_layout(showlegend=False, margin={"t": 64})
    figure.update_yaxes(autorange="reversed", showgrid=False, ticks="", showline=False, ticklabelstandoff=6)
    return figure
