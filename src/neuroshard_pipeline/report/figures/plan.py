"""Plans side by side: the shards, the cost and the memory of every rank, and what the ranks send to each other."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.evaluation.comparison import Basis
from neuroshard_pipeline.evaluation.totals import COST_COLUMNS, plan_costs_frame, plan_totals
from neuroshard_pipeline.report import style
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.search.volumes import KINDS, plan_volumes
from neuroshard_pipeline.tables.tiers import parent_tables

#: A whole table is grey; more lookups make it darker. All shards of one split table have the same colour. Replicas are
#: hatched.
_LIGHT, _DARK = 215, 130
_SPLIT_COLOURS = ("#D55E00", "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9")
_LEGEND = {"whole table": ("#b4bac0", ""), "shard of a split table": (_SPLIT_COLOURS[0], "")}
_REPLICA = {"replica": ("#b4bac0", "/")}
#: Most ranks that all have a label.
_LABELS = 16
_KIND_NAMES = {"ids": "ids", "outputs": "rows and gradients", "reductions": "reductions"}


class _Side(NamedTuple):
    """One plan: its shards with the properties of their tables, and the costs of its ranks."""

    name: str
    shards: pd.DataFrame
    costs: pd.DataFrame


def plan_picture(
    plans: pd.DataFrame, plan_costs: pd.DataFrame, sharding_tasks: pd.DataFrame, task_id: str, before: str, after: str
) -> go.Figure:
    """The plans of the sharders `before` (left) and `after` side by side: shards, cost and memory of every rank.

    Raises:
        PlanError: one of the two sharders has no plan for the task.
    """
    tables = sharding_tasks[sharding_tasks["task_id"] == task_id]
    costs = [_of(plan_costs, task_id, sharder) for sharder in (before, after)]
    shards = [_shards_of(_of(plans, task_id, sharder), tables) for sharder in (before, after)]
    names = [style.emphasised(sharder) for sharder in (before, after)]
    title = f"{task_id}: {len(tables)} tables on {tables['world_size'].iloc[0]} ranks"
    return _picture(list(map(_Side, names, shards, costs)), title)


def pictures(plans: Mapping[str, Plan], title: str) -> go.Figure:
    """Priced plans side by side, in their order: shards, predicted cost and memory of every rank."""
    sides = []
    for name, plan in plans.items():
        limits = plan.memory.limits(plan.task)
        tables = parent_tables(plan.task)
        rows = [(of.name, of.num_embeddings, of.embedding_dim, of.pooling_factor, limits) for of in tables]
        known = pd.DataFrame(
            rows, columns=["table", "num_embeddings", "embedding_dim", "pooling_factor", "memory_bytes"]
        )
        shards = _shards_of(plan.to_frame().sort_values("rank", kind="stable"), known)
        sides.append(_Side(name, shards, plan_costs_frame([plan])))
    return _picture(sides, title)


def sent_bytes(plans: Mapping[str, Plan]) -> go.Figure:
    """What every host sends to other hosts in a step; every rank, if all ranks are on one host. Plans side by side."""
    figure = make_subplots(1, len(plans), shared_yaxes=True, horizontal_spacing=0.03, column_titles=list(plans))
    several = any(plan.task.num_hosts > 1 for plan in plans.values())
    for column, plan in enumerate(plans.values(), start=1):
        volumes = plan_volumes(plan.task, plan.shards, plan.ranks)
        of, members = (volumes.across, plan.task.ranks_per_host) if several else (volumes.inside, 1)
        for kind in KINDS:
            megabytes = of[kind].reshape(-1, members).sum(axis=1) / 1e6
            name, colour = _KIND_NAMES[kind], style.KIND_COLOURS[kind]
            bar = go.Bar(y=style.rounded(megabytes), name=name, legendgroup=kind, marker_color=colour)
            figure.add_trace(bar.update(showlegend=column == 1), row=1, col=column)
    bars = max(len(trace.y) for trace in figure.data)
    figure.update_xaxes(title_text="host" if several else "rank", dtick=-(-bars // _LABELS), tick0=0)
    figure.update_yaxes(title_text="MB per step", col=1)
    who = "every host sends to the other hosts" if several else "every rank sends to the other ranks"
    style.styled(figure, f"What {who} in a step, computed from the statistics of the tables", height=380)
    return figure.update_layout(barmode="stack", legend={"y": 1.12}, margin={"t": 132})


def _picture(sides: Sequence[_Side], title: str) -> go.Figure:
    is_measured = plan_totals(pd.concat([side.costs for side in sides]))["measured_step_ms"].notna().all()
    basis: Basis = "measured" if is_measured else "predicted"
    figure = make_subplots(
        rows=3,
        cols=len(sides),
        shared_yaxes="rows",
        shared_xaxes="columns",
        row_heights=[0.5, 0.35, 0.15],
        horizontal_spacing=0.03,
        vertical_spacing=0.045,
        column_titles=[side.name for side in sides],
    )
    for column, side in enumerate(sides, start=1):
        _add_plan(figure, column, side.shards, side.costs, basis)
    _add_legend(figure, pd.concat([side.shards["sharding_type"] for side in sides]))
    for row, label in enumerate(("columns", f"{basis} cost, ms", "memory, %"), start=1):
        figure.update_yaxes(title_text=label, row=row, col=1)
    return _laid_out(figure, title, max(len(side.costs) for side in sides))


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


def _laid_out(figure: go.Figure, title: str, world_size: int) -> go.Figure:
    figure.update_xaxes(tickmode="array", tickvals=list(range(0, world_size, -(-world_size // _LABELS))), ticks="")
    figure.update_xaxes(title_text="rank", row=3)
    style.styled(figure, title, height=860)
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


def _add_legend(figure: go.Figure, types: pd.Series) -> None:
    """Explain the colours of shards, and the hatching of replicas if the plans have any."""
    has_replicas = (types == "data_parallel").any()
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
