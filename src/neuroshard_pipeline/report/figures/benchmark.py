"""Figures of the benchmark: performance profile, cost against time, and what ours gains on every rival."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from neuroshard_pipeline.evaluation.benchmark.judging import cost_table
from neuroshard_pipeline.report.style import INK, OURS, emphasised, faded, log_axis, sharder_colours, styled, words

#: Plans dearer than this many times the best one are beyond the right edge of a profile.
_WIDEST_PROFILE = 2.0
_ROW_PX = 30
_FRAME_PX = 150


def performance_profile(suite: str, costs: pd.DataFrame, basis: str) -> go.Figure:
    """Per sharder the share of tasks that it solves within x times the cheapest plan [Dolan2002].

    Args:
        suite: its name.
        costs: the suite's rows of `benchmark.task_costs`.
        basis: what is compared, measured or predicted cost.
    """
    table = cost_table(costs)
    relative = table.div(table.min(axis=1), axis=0)
    colours = sharder_colours(relative.columns)
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
            name=emphasised(name),
            line={"shape": "hv", "color": colours[name], "width": 3 if name in OURS else 1.6},
            hovertemplate=f"{name}: %{{y:.0f}} % of tasks within %{{x:.3f}} times the best<extra></extra>",
        )
    figure.update_xaxes(title_text=f"{basis} cost ÷ best plan's", range=[0.995, _WIDEST_PROFILE])
    figure.update_yaxes(title_text="tasks, %", range=[0, 103])
    styled(figure, f"{suite}: tasks solved within a factor of the best plan", height=440)
    figure.update_layout(legend={"y": 1.0, "x": 1.02, "orientation": "v", "yanchor": "top"}, margin={"r": 170})
    return figure


def cost_against_time(suite: str, judged: Mapping[str, Any]) -> go.Figure:
    """One point per sharder: seconds per task, and its cost relative to the best of every task.

    Args:
        suite: its name.
        judged: the suite in `benchmark.judgement`.
    """
    title = f"{suite}: cost against the time to find a plan"
    known = {name: values for name, values in judged["sharders"].items() if values["relative"]}
    if not known:
        return words(title, "No task was solved by every compared sharder.")
    colours = sharder_colours(judged["sharders"])
    figure = go.Figure()
    for name, values in known.items():
        relative = values["relative"]
        band = None
        if relative["low"] is not None:
            band = {
                "array": [relative["high"] - relative["value"]],
                "arrayminus": [relative["value"] - relative["low"]],
                "color": faded(colours[name], 0.6),
                "thickness": 1.4,
            }
        figure.add_scatter(
            x=[values["seconds"]],
            y=[relative["value"]],
            error_y=band,
            mode="markers+text",
            text=[emphasised(name)],
            textposition="middle right",
            marker={"color": colours[name], "size": 12 if name in OURS else 9},
            hovertemplate=f"{name}: %{{x:.3g}} s per task, %{{y:.3f}} times the best<extra></extra>",
        )
    seconds = [values["seconds"] for values in known.values()]
    figure.update_xaxes(log_axis(min(seconds) / 2, max(seconds) * 12), title_text="seconds per task")
    figure.update_yaxes(title_text=f"{judged['basis']} cost ÷ best plan's, mean")
    styled(figure, title, height=420)
    figure.update_layout(showlegend=False)
    return figure


def gains(judgement: Mapping[str, Any], ours: str) -> go.Figure:
    """How far `ours` lies below (left) or above (right) every rival, suite by suite, with intervals.

    Args:
        judgement: `benchmark.judgement`.
        ours: one of our sharders.
    """
    pairs = [
        (suite, pair)
        for suite, judged in judgement["suites"].items()
        for pair in judged["pairs"]
        if pair["ours"] == ours and pair["ratio"] is not None
    ]
    title = f"Cost of {ours} against every other sharder, per suite"
    if not pairs:
        return words(title, f"{ours} and no other sharder solved a task in common.")
    rivals = list(dict.fromkeys(pair["rival"] for _, pair in pairs))
    suites = list(dict.fromkeys(suite for suite, _ in pairs))
    colours = sharder_colours(rivals)
    figure = go.Figure()
    for rival in rivals:
        own = [(suite, pair) for suite, pair in pairs if pair["rival"] == rival]
        figure.add_scatter(
            x=[100 * (pair["ratio"] - 1) for _, pair in own],
            y=[[suite for suite, _ in own], [rival] * len(own)],
            error_x=_bars([pair for _, pair in own], colours[rival]),
            mode="markers",
            marker={"color": colours[rival], "size": 8, "symbol": [_symbol(pair) for _, pair in own]},
            text=[pair["statement"] for _, pair in own],
            hovertemplate="%{text}<extra></extra>",
            showlegend=False,
        )
    figure.add_vline(x=0, line={"color": INK, "width": 1, "dash": "dot"})
    figure.update_xaxes(title_text=f"cost of {ours} over the other's, less 1, %")
    figure.update_yaxes(type="multicategory", autorange="reversed", tickfont={"size": 11})
    styled(figure, title, height=_FRAME_PX + max(6, len(pairs)) * 20 + 10 * len(suites))
    return figure


def _bars(pairs: Sequence[Mapping[str, Any]], colour: str) -> dict[str, Any]:
    """Intervals; none where too few tasks are behind the point."""
    ends = [(pair["low"] or pair["ratio"], pair["high"] or pair["ratio"], pair["ratio"]) for pair in pairs]
    return {
        "array": [100 * (high - middle) for _, high, middle in ends],
        "arrayminus": [100 * (middle - low) for low, _, middle in ends],
        "color": faded(colour, 0.7),
        "thickness": 1.6,
    }


def _symbol(pair: Mapping[str, Any]) -> str:
    return "circle-open" if pair["low"] is None else "circle"
