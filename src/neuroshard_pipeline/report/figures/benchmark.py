"""Figures of the benchmark: performance profiles, and comparisons of two sharders."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from neuroshard_pipeline.evaluation.comparison import OURS
from neuroshard_pipeline.evaluation.verdicts import suite_costs
from neuroshard_pipeline.report import style

#: Right edge of a performance profile: the largest cost shown, as a multiple of the cheapest plan's cost.
_WIDEST_PROFILE = 2.0


def performance_profile(suite: str, costs: pd.DataFrame, basis: str) -> go.Figure:
    """Per sharder, the share of tasks that it solves within x times the cost of the cheapest plan [Dolan2002].

    Tasks for which no sharder has a cost are left out.
    """
    table = suite_costs(costs)
    relative = table.div(table.min(axis=1), axis=0)
    colours = style.sharder_colours(relative.columns)
    figure = go.Figure()
    for name in relative.columns:
        ratios = np.sort(relative[name].dropna().to_numpy())
        share = 100 * np.arange(1, len(ratios) + 1) / len(relative)
        inside = (ratios > 1.0) & (ratios <= _WIDEST_PROFILE)
        start, end = (100 * float((ratios <= edge).sum()) / len(relative) for edge in (1.0, _WIDEST_PROFILE))
        figure.add_scatter(
            x=[1.0, *ratios[inside].round(4).tolist(), _WIDEST_PROFILE],
            y=[start, *share[inside].round(2).tolist(), end],
            mode="lines",
            name=style.emphasised(name),
            line={"shape": "hv", "color": colours[name], "width": 3 if name in OURS else 1.6},
            hovertemplate=f"{name}: %{{y:.0f}} % of tasks within %{{x:.3f}} times the cheapest plan<extra></extra>",
        )
    figure.update_xaxes(title_text=f"{basis} cost / cost of the cheapest plan", range=[0.995, _WIDEST_PROFILE])
    figure.update_yaxes(title_text="tasks, %", range=[0, 103])
    style.styled(figure, f"{suite}: share of tasks solved within a factor of the cheapest plan", height=440)
    figure.update_layout(legend={"y": 1.0, "x": 1.02, "orientation": "v", "yanchor": "top"}, margin={"r": 170})
    return figure


def comparisons(verdicts: Mapping[str, Any], ours: str) -> go.Figure:
    """Cost of the plans of `ours` relative to every other sharder's plans, in percent; negative means cheaper."""
    pairs = [
        (suite, pair)
        for suite, verdict in verdicts["suites"].items()
        for pair in verdict["pairs"]
        if pair["ours"] == ours and pair["ratio"] is not None
    ]
    title = f"Cost of {ours} relative to every other sharder, per suite"
    if not pairs:
        return style.empty_figure(title, f"No task has costs of both {ours} and another sharder.")
    colours = style.sharder_colours(pair["rival"] for _, pair in pairs)
    figure = go.Figure([_comparison_points(pairs, rival, colour) for rival, colour in colours.items()])
    figure.add_vline(x=0, line=style.REFERENCE_LINE)
    figure.update_xaxes(title_text=f"cost of {ours} relative to the other sharder, %")
    figure.update_yaxes(type="multicategory", autorange="reversed", tickfont={"size": 11})
    height = 150 + max(6, len(pairs)) * 20 + 10 * len({suite for suite, _ in pairs})
    return style.styled(figure, title, height=height)


def _comparison_points(pairs: Sequence[tuple[str, Mapping[str, Any]]], rival: str, colour: str) -> go.Scatter:
    """One point per suite with its confidence interval, in percent; an open circle if there is no interval."""
    suites = [suite for suite, pair in pairs if pair["rival"] == rival]
    own = [pair for _, pair in pairs if pair["rival"] == rival]
    symbols = ["circle-open" if pair["low"] is None else "circle" for pair in own]
    return go.Scatter(
        x=[100 * (pair["ratio"] - 1) for pair in own],
        y=[suites, [rival] * len(own)],
        error_x=_error_bars(own, "ratio", colour, scale=100),
        mode="markers",
        marker={"color": colour, "size": 8, "symbol": symbols},
        text=[pair["statement"] for pair in own],
        hovertemplate="%{text}<extra></extra>",
        showlegend=False,
    )


def _error_bars(intervals: Sequence[Mapping[str, Any]], value: str, colour: str, scale: float = 1) -> dict[str, Any]:
    """Error bars for confidence intervals around the entry `value`; their length is 0 if a bound is None."""
    return {
        "array": [0 if each["high"] is None else scale * (each["high"] - each[value]) for each in intervals],
        "arrayminus": [0 if each["low"] is None else scale * (each[value] - each["low"]) for each in intervals],
        "color": style.faded(colour, 0.7),
        "thickness": 1.5,
    }
