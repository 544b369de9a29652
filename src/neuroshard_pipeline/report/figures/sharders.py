"""Figures that compare sharders: mean cost, cost relative to the cheapest plan, tasks solved."""

from collections.abc import Sequence

import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

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


def success_rates(sharding_tasks: pd.DataFrame, plans: pd.DataFrame, sharders: Sequence[str]) -> go.Figure:
    """Share of the tasks that each sharder solved, with one panel per world size."""
    tasks = sharding_tasks.drop_duplicates("task_id")
    solved = plans.drop_duplicates(["task_id", "sharder"]).merge(tasks[["task_id", "world_size"]], on="task_id")
    tried = tasks["world_size"].value_counts().sort_index()
    titles = [f"{world_size} ranks" for world_size in tried.index]
    figure = make_subplots(rows=1, cols=len(tried), shared_yaxes=True, horizontal_spacing=0.1, subplot_titles=titles)
    for column, (world_size, count) in enumerate(tried.items(), start=1):
        counts = solved.loc[solved["world_size"] == world_size, "sharder"].value_counts()
        figure.add_trace(_success_bars(counts.reindex(list(sharders), fill_value=0), int(count)), row=1, col=column)
    figure.update_xaxes(range=[0, 104], tickvals=[0, 50, 100], title_text="tasks solved, %")
    return _rows(figure, "Tasks solved, by number of ranks", len(sharders), row_px=34)


def _success_bars(solved: pd.Series, tried: int) -> go.Bar:
    """Return one bar per sharder, labelled `3 of 4`; `solved` counts the solved tasks, with sharders as its index."""
    colours = style.sharder_colours(solved.index)
    return go.Bar(
        x=[100 * number / tried for number in solved],
        y=[style.emphasised(name) for name in solved.index],
        orientation="h",
        text=[f"{number} of {tried}" for number in solved],
        textposition="auto",
        insidetextanchor="start",
        marker_color=[style.bar_colour(name, colours[name]) for name in solved.index],
        hovertemplate="%{y}: %{text} tasks<extra></extra>",
    )


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


def _rows(figure: go.Figure, title: str, count: int, row_px: int = 46) -> go.Figure:
    """Lay out and return the figure: `count` rows from the top down, each labelled with its sharder; no legend."""
    style.styled(figure, title, height=150 + row_px * max(count, 2))
    figure.update_layout(showlegend=False, margin={"t": 64})
    figure.update_yaxes(autorange="reversed", showgrid=False, ticks="", showline=False, ticklabelstandoff=6)
    return figure
