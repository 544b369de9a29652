"""Two plans of one task side by side: the shards, the cost and the memory of every rank."""

import itertools
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.evaluation.comparison import Basis
from neuroshard_pipeline.evaluation.totals import COST_COLUMNS, plan_totals
from neuroshard_pipeline.report import style

#: A whole table is grey; more lookups make it darker. All shards of one split table have the same colour. Replicas are
#: hatched.
_LIGHT, _DARK = 215, 130
_SPLIT_COLOURS = ("#D55E00", "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9")
_LEGEND = {"whole table": ("#b4bac0", ""), "shard of a split table": (_SPLIT_COLOURS[0], "")}
_REPLICA = {"replica": ("#b4bac0", "/")}


def plan_picture(
    plans: pd.DataFrame, plan_costs: pd.DataFrame, sharding_tasks: pd.DataFrame, task_id: str, before: str, after: str
) -> go.Figure:
    """The plans of the sharders `before` (left) and `after` side by side: shards, cost and memory of every rank.

    Raises:
        PlanError: one of the two sharders has no plan for the task.
    """
    tables = sharding_tasks[sharding_tasks["task_id"] == task_id]
    costs = [_of(plan_costs, task_id, sharder) for sharder in (before, after)]
    is_measured = plan_totals(pd.concat(costs))["measured_step_ms"].notna().all()
    basis: Basis = "measured" if is_measured else "predicted"
    figure = make_subplots(
        rows=3,
        cols=2,
        shared_yaxes="rows",
        shared_xaxes="columns",
        row_heights=[0.5, 0.35, 0.15],
        horizontal_spacing=0.03,
        vertical_spacing=0.045,
        column_titles=[style.emphasised(before), style.emphasised(after)],
    )
    for column, (sharder, own) in enumerate(zip((before, after), costs, strict=True), start=1):
        _add_plan(figure, column, _shards_of(_of(plans, task_id, sharder), tables), own, basis)
    _add_legend(figure, plans[plans["task_id"] == task_id])
    for row, label in enumerate(("columns", f"{basis} cost, ms", "memory, %"), start=1):
        figure.update_yaxes(title_text=label, row=row, col=1)
    return _laid_out(figure, task_id, tables)


def _add_plan(figure: go.Figure, column: int, shards: pd.DataFrame, costs: pd.DataFrame, basis: Basis) -> None:
    """Add the three panels of one plan. A dotted line marks its step."""
    figure.add_trace(_shard_bars(shards), row=1, col=column)
    for part in style.PART_NAMES:
        trace = _part_bars(costs, part, basis)
        if trace is not None:
            known = {each.legendgroup for each in figure.data}
            figure.add_trace(trace.update(showlegend=trace.legendgroup not in known), row=2, col=column)
    cost_ms = float(plan_totals(costs)[COST_COLUMNS[basis]].iloc[0])
    label = {"text": f"<b>{cost_ms:.3g} ms</b>", "yanchor": "bottom", "xanchor": "right", "font": {"color": style.INK}}
    label |= {"bgcolor": "rgba(255,255,255,0.8)"}
    figure.add_hline(y=cost_ms, line=style.REFERENCE_LINE, annotation=label, row=2, col=column)
    figure.add_trace(_memory_bars(costs, shards), row=3, col=column)


def _laid_out(figure: go.Figure, task_id: str, tables: pd.DataFrame) -> go.Figure:
    world_size = int(tables["world_size"].iloc[0])
    figure.update_xaxes(tickmode="array", tickvals=list(range(world_size)), ticks="")
    figure.update_xaxes(title_text="rank", row=3)
    style.styled(figure, f"{task_id}: {len(tables)} tables on {world_size} ranks", height=860)
    figure.update_annotations(font_size=13)
    figure.update_layout(barmode="stack", bargap=0.18, legend={"y": 1.05}, margin={"t": 132})
    return figure


def _of(frame: pd.DataFrame, task_id: str, sharder: str) -> pd.DataFrame:
    own = frame[(frame["task_id"] == task_id) & (frame["sharder"] == sharder)]
    if own.empty:
        solved = sorted(frame.loc[frame["task_id"] == task_id, "sharder"].unique())
        raise PlanError(f"{task_id} has no plan by {sharder!r}; it has plans by {', '.join(solved) or 'no sharder'}")
    return own.sort_values("rank", kind="stable")


def _shards_of(rows: pd.DataFrame, tables: pd.DataFrame) -> pd.DataFrame:
    """Shards of a plan, each with the properties of its table."""
    return rows.merge(tables, on="table", suffixes=("", "_of_table"))


def _add_legend(figure: go.Figure, plans: pd.DataFrame) -> None:
    """Explain the colours of shards, and the hatching of replicas if the task's plans have any."""
    has_replicas = (plans["sharding_type"] == "data_parallel").any()
    for name, (colour, hatching) in (_LEGEND | (_REPLICA if has_replicas else {})).items():
        marker = {"color": colour, "pattern": {"shape": hatching}}
        figure.add_trace(go.Bar(x=[None], y=[None], name=name, marker=marker), row=1, col=1)


def _shard_bars(shards: pd.DataFrame) -> go.Bar:
    """One segment per shard, with the shard's width as its height; the widest shard is at the bottom."""
    ordered = shards.sort_values(["rank", "embedding_dim", "table"], ascending=[True, False, True])
    top = ordered.groupby("rank")["embedding_dim"].cumsum()
    return go.Bar(
        x=ordered["rank"].tolist(),
        y=ordered["embedding_dim"].tolist(),
        base=(top - ordered["embedding_dim"]).tolist(),
        text=[_describe(shard) for shard in ordered.to_dict("records")],
        textposition="none",
        marker={
            "color": _colours(ordered),
            "line": {"color": "#ffffff", "width": 1},
            "pattern": {"shape": ["/" if kind == "data_parallel" else "" for kind in ordered["sharding_type"]]},
        },
        showlegend=False,
        hovertemplate="%{text}<extra>rank %{x}</extra>",
    )


def _colours(shards: pd.DataFrame) -> list[str]:
    lookups = np.log(shards["pooling_factor"].to_numpy(dtype=float))
    span = max(float(np.ptp(lookups)), 1e-9)
    greys = np.round(_LIGHT - (_LIGHT - _DARK) * (lookups - lookups.min()) / span).astype(int)
    has_part = shards["num_rows"] < shards["num_embeddings"]
    is_split = has_part | (shards["embedding_dim"] < shards["embedding_dim_of_table"])
    split = dict(zip(dict.fromkeys(shards.loc[is_split, "table"]), itertools.cycle(_SPLIT_COLOURS), strict=False))
    shades = [f"rgb({grey},{grey + 6},{grey + 12})" for grey in greys]
    return [split.get(table, shade) for table, shade in zip(shards["table"], shades, strict=True)]


def _describe(shard: dict[Any, Any]) -> str:
    start, width = shard["column_offset"], shard["embedding_dim"]
    rows = f"{shard['num_embeddings']:,} rows"
    if shard["num_rows"] < shard["num_embeddings"]:
        first = shard["row_offset"]
        rows = f"rows {first:,} to {first + shard['num_rows'] - 1:,.0f} of {shard['num_embeddings']:,}"
    return (
        f"<b>{shard['table']}</b><br>columns {start} to {start + width - 1} of {shard['embedding_dim_of_table']}"
        f"<br>{rows}<br>{shard['pooling_factor']:.3g} ids per sample<br>{shard['sharding_type']}"
    )


def _part_bars(costs: pd.DataFrame, part: str, basis: Basis) -> go.Bar | None:
    """Bars of one part, None if the plan does not have it."""
    column = f"{basis}_{part}_ms"
    if column not in costs or costs[column].isna().all():
        return None
    name, colour = style.PART_NAMES[part], style.PART_COLOURS[part]
    return go.Bar(
        x=costs["rank"].tolist(),
        y=costs[column].astype(float).round(5).tolist(),
        name=name,
        legendgroup=part,
        marker_color=colour,
        hovertemplate=f"{name}: %{{y:.4g}} ms<extra>rank %{{x}}</extra>",
    )


def _memory_bars(costs: pd.DataFrame, shards: pd.DataFrame) -> go.Bar:
    limits = np.broadcast_to(np.asarray(shards["memory_bytes"].iloc[0], dtype=float), len(costs))
    used = costs["memory_bytes"].to_numpy(dtype=float)
    return go.Bar(
        x=costs["rank"].tolist(),
        y=np.round(100 * used / limits, 2).tolist(),
        text=[f"{mine / 2**20:,.1f} of {limit / 2**20:,.1f} MiB" for mine, limit in zip(used, limits, strict=True)],
        textposition="none",
        marker_color=style.faded(style.MUTED, 0.6),
        showlegend=False,
        hovertemplate="%{text} (%{y:.1f} %)<extra>rank %{x}</extra>",
    )
