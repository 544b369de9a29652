"""One task's plan as a picture: what every rank holds and what it costs, before and after."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.report.style import INK, MUTED, PART_COLOURS, PART_NAMES, emphasised, faded, styled
from neuroshard_pipeline.report.totals import PARTS, Kind, rank_ms

#: Whole tables are grey, the darker the more they are looked up; the parts of a split table share a colour.
_LIGHT, _DARK = 215, 130
_SPLIT_COLOURS = ("#D55E00", "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9")


def plan_picture(
    plans: pd.DataFrame, plan_costs: pd.DataFrame, sharding_tasks: pd.DataFrame, task_id: str, before: str, after: str
) -> go.Figure:
    """Two plans of one task side by side: shards, cost and memory of every rank.

    Args:
        plans: `search.plans`.
        plan_costs: `search.plan_costs`.
        sharding_tasks: `augment.sharding_tasks`.
        task_id: the task.
        before: sharder on the left.
        after: sharder on the right.

    Raises:
        PlanError: one of the two has no plan for the task.
    """
    tables = sharding_tasks[sharding_tasks["task_id"] == task_id]
    figure = make_subplots(
        rows=3,
        cols=2,
        shared_yaxes="rows",
        shared_xaxes="columns",
        row_heights=[0.5, 0.35, 0.15],
        horizontal_spacing=0.03,
        vertical_spacing=0.045,
        column_titles=[emphasised(before), emphasised(after)],
    )
    pair = [_of(plan_costs, task_id, sharder) for sharder in (before, after)]
    kind: Kind = "measured" if all(rank_ms(costs, "measured").notna().all() for costs in pair) else "predicted"
    for column, (sharder, costs) in enumerate(zip((before, after), pair, strict=True), start=1):
        shards = _of(plans, task_id, sharder).merge(tables, on="table", suffixes=("", "_of_table"))
        figure.add_trace(_shard_bars(shards), row=1, col=column)
        for part in PARTS:
            figure.add_trace(_part_bars(costs, part, kind, in_legend=column == 1), row=2, col=column)
        _mark_embedding_cost(figure, costs, kind, column)
        figure.add_trace(_memory_bars(costs, tables), row=3, col=column)
    for colour, name in (("#b4bac0", "whole table"), (_SPLIT_COLOURS[0], "part of a split table")):
        figure.add_trace(_legend_key(name, colour), row=1, col=1)
    for row, label in enumerate(("columns", f"{kind} cost, ms", "memory, %"), start=1):
        figure.update_yaxes(title_text=label, row=row, col=1)
    world_size = int(tables["world_size"].iloc[0])
    figure.update_xaxes(tickmode="array", tickvals=list(range(world_size)), ticks="")
    figure.update_xaxes(title_text="rank", row=3)
    styled(figure, f"{task_id}: {len(tables)} tables on {world_size} ranks", height=860)
    figure.update_annotations(font_size=13)
    figure.update_layout(barmode="stack", bargap=0.18, legend={"y": 1.05}, margin={"t": 132})
    return figure


def _of(frame: pd.DataFrame, task_id: str, sharder: str) -> pd.DataFrame:
    own = frame[(frame["task_id"] == task_id) & (frame["sharder"] == sharder)]
    if own.empty:
        solved = sorted(frame.loc[frame["task_id"] == task_id, "sharder"].unique())
        raise PlanError(f"{task_id} has no plan by {sharder!r}; it has plans by {', '.join(solved) or 'nobody'}")
    return own.sort_values("rank", kind="stable")


def _shard_bars(shards: pd.DataFrame) -> go.Bar:
    """One segment per shard, as high as the shard is wide; the widest at the bottom."""
    ordered = shards.sort_values(["rank", "embedding_dim", "table"], ascending=[True, False, True])
    top = ordered.groupby("rank")["embedding_dim"].cumsum()
    return go.Bar(
        x=ordered["rank"].tolist(),
        y=ordered["embedding_dim"].tolist(),
        base=(top - ordered["embedding_dim"]).tolist(),
        text=[_describe(shard) for shard in ordered.to_dict("records")],
        textposition="none",
        marker={"color": _colours(ordered), "line": {"color": "#ffffff", "width": 1}},
        showlegend=False,
        hovertemplate="%{text}<extra>rank %{x}</extra>",
    )


def _colours(shards: pd.DataFrame) -> list[str]:
    lookups = np.log(shards["pooling_factor"].to_numpy(dtype=float))
    span = max(float(np.ptp(lookups)), 1e-9)
    greys = np.round(_LIGHT - (_LIGHT - _DARK) * (lookups - lookups.min()) / span).astype(int)
    is_part = shards["embedding_dim"] < shards["embedding_dim_of_table"]
    split = dict(zip(dict.fromkeys(shards.loc[is_part, "table"]), itertools.cycle(_SPLIT_COLOURS), strict=False))
    shades = [f"rgb({grey},{grey + 6},{grey + 12})" for grey in greys]
    return [split.get(table, shade) for table, shade in zip(shards["table"], shades, strict=True)]


def _describe(shard: dict[Any, Any]) -> str:
    start, width = shard["column_offset"], shard["embedding_dim"]
    return (
        f"<b>{shard['table']}</b><br>columns {start} to {start + width - 1} of {shard['embedding_dim_of_table']}"
        f"<br>{shard['num_embeddings']:,} rows<br>{shard['pooling_factor']:.3g} ids per sample"
    )


def _part_bars(costs: pd.DataFrame, part: str, kind: Kind, *, in_legend: bool) -> go.Bar:
    return go.Bar(
        x=costs["rank"].tolist(),
        y=costs[f"{kind}_{part}_ms"].astype(float).round(5).tolist(),
        name=PART_NAMES[part],
        legendgroup=part,
        showlegend=in_legend,
        marker_color=PART_COLOURS[part],
        hovertemplate=f"{PART_NAMES[part]}: %{{y:.4g}} ms<extra>rank %{{x}}</extra>",
    )


def _mark_embedding_cost(figure: go.Figure, costs: pd.DataFrame, kind: Kind, column: int) -> None:
    """A line at the dearest rank: the plan's embedding cost."""
    cost = float(rank_ms(costs, kind).max())
    figure.add_hline(
        y=cost,
        line={"color": INK, "width": 1, "dash": "dot"},
        annotation={"text": f"<b>{cost:.3g} ms</b>", "yanchor": "bottom", "xanchor": "right", "font": {"color": INK}},
        row=2,
        col=column,
    )


def _memory_bars(costs: pd.DataFrame, tables: pd.DataFrame) -> go.Bar:
    limits = np.broadcast_to(np.asarray(tables["memory_bytes"].iloc[0], dtype=float), len(costs))
    used = costs["memory_bytes"].to_numpy(dtype=float)
    return go.Bar(
        x=costs["rank"].tolist(),
        y=np.round(100 * used / limits, 2).tolist(),
        text=[f"{mine / 2**20:,.1f} of {limit / 2**20:,.1f} MiB" for mine, limit in zip(used, limits, strict=True)],
        textposition="none",
        marker_color=faded(MUTED, 0.6),
        showlegend=False,
        hovertemplate="%{text} (%{y:.1f} %)<extra>rank %{x}</extra>",
    )


def _legend_key(name: str, colour: str) -> go.Bar:
    """An empty trace that explains a colour."""
    return go.Bar(x=[None], y=[None], name=name, marker_color=colour)
