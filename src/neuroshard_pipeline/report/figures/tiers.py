"""Tiers (hot, host and cold rows) of a plan's sequence tables: popularity curves, and bytes inside or between hosts."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.evaluation.plan_frames import shards_from_frame, task_from_frame
from neuroshard_pipeline.evaluation.totals import plan_totals
from neuroshard_pipeline.report import style
from neuroshard_pipeline.report.formats import percent
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.search.plan_data import TIER_COLUMN
from neuroshard_pipeline.search.volumes import KINDS, Kind, Volumes, plan_volumes
from neuroshard_pipeline.tables.constraints import UNCONSTRAINED
from neuroshard_pipeline.tables.frames import tasks_from_frame
from neuroshard_pipeline.tables.kinds import TierKind
from neuroshard_pipeline.tables.popularity import curve_of, curve_source
from neuroshard_pipeline.tables.row_blocks import row_shards
from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.tables.tiers import parent_tables, tiers_of

#: At most this many tables are drawn: those whose looked-up rows have the most floats.
_TABLES_SHOWN = 4

_TIER_COLOURS: dict[TierKind, str] = {"hot": "#D55E00", "host": "#E69F00", "cold": "#56B4E9"}
_TIER_NAMES: dict[TierKind, str] = {
    "hot": "hot: on every rank",
    "host": "host: on every host",
    "cold": "cold: stored once",
}
_KIND_NAMES: dict[Kind, str] = {
    "ids": "ids",
    "outputs": "rows and their gradients",
    "reductions": "gradients of hot and host rows",
}
_POINTS = 160
_MEGABYTE = 1e6


def tiers_of_run(plans: pd.DataFrame, plan_costs: pd.DataFrame, sharding_tasks: pd.DataFrame) -> go.Figure:
    """The picture of the plan with tiers whose predicted step is cheapest, or an empty figure if no plan has tiers."""
    if TIER_COLUMN not in plans or not plans[TIER_COLUMN].fillna("").any():
        return style.empty_figure("Tiers of sequence tables", "No plan of this run has tiers.")
    tiered = plans[plans[TIER_COLUMN].fillna("") != ""][["task_id", "sharder"]].drop_duplicates()
    totals = plan_totals(plan_costs).merge(tiered, on=["task_id", "sharder"])
    best = totals.sort_values("predicted_step_ms", kind="stable").iloc[0]
    rows = plans[(plans["task_id"] == best["task_id"]) & (plans["sharder"] == best["sharder"])]
    (asked,) = tasks_from_frame(sharding_tasks[sharding_tasks["task_id"] == best["task_id"]])
    task = task_from_frame(rows, asked)
    return tiers_picture(Plan(task, *shards_from_frame(rows, task), str(best["sharder"])))


def tiers_picture(plan: Plan) -> go.Figure:
    """Popularity curves with the cuts, and the bytes per step with and without tiers: one row of panels per table.

    At most `_TABLES_SHOWN` of the tables with tiers are drawn. The bytes are expected values that `search.volumes`
    computes from the statistics of the tables. Without tiers, the whole table is row-wise.

    Raises:
        PlanError: the plan has no tiers.
    """
    tiers = tiers_of(plan.task)
    if not tiers:
        raise PlanError(f"{plan.task.task_id}: the plan by {plan.sharder} has no tiers to draw")
    parents = [table for table in parent_tables(plan.task) if table.name in tiers]
    shown = sorted(parents, key=lambda table: -table.pooling_factor * table.embedding_dim)[:_TABLES_SHOWN]
    figure = make_subplots(
        rows=len(shown),
        cols=2,
        column_widths=[0.56, 0.44],
        horizontal_spacing=0.2,
        vertical_spacing=0.28 / len(shown),
        subplot_titles=[text for table in shown for text in (_title(table, tiers[table.name]), _saving(table, plan))],
    )
    for row, table in enumerate(shown, start=1):
        _add_curve(figure, row, table, tiers[table.name], plan)
        _add_wires(figure, row, _wires(table, plan))
    number = f"{len(shown)} of {len(parents)}" if len(shown) < len(parents) else f"{len(parents)}"
    which = ", those with the largest lookups" if len(shown) < len(parents) else ""
    title = f"{plan.task.task_id} by {plan.sharder}: tiers of {number} sequence tables{which}"
    figure.update_xaxes(title_text="most popular rows", row=len(shown), col=1)
    figure.update_xaxes(title_text="MB per step, all ranks", row=len(shown), col=2)
    style.styled(figure, title, height=220 + 250 * len(shown))
    figure.update_annotations(font_size=13, xanchor="left", align="left")
    for annotation, axis in zip(figure.layout.annotations, figure.select_xaxes(), strict=False):
        annotation.x = axis.domain[0]
    figure.update_layout(
        barmode="stack", legend={"y": -70.0 / (250 * len(shown)), "yanchor": "top"}, margin={"t": 100, "b": 120}
    )
    return figure


def _title(table: Table, tiers: Sequence[Table]) -> str:
    ids = sum(tier.pooling_factor for tier in tiers)
    parts = [
        f"{tier.tier.kind} {style.short_number(tier.num_embeddings)} rows ({percent(tier.pooling_factor / ids)})"
        for tier in tiers
        if tier.tier is not None
    ]
    return f"<b>{table.name}</b>; its curve comes from {curve_source(table)}<br>{', '.join(parts)}"


def _saving(table: Table, plan: Plan) -> str:
    """By how much the tiers change the bytes inside hosts and between hosts."""
    parts = []
    for wire, (tiered, whole) in _wires(table, plan).items():
        tiered_bytes, whole_bytes = (sum(_bytes(of, wire, kind) for kind in KINDS) for of in (tiered, whole))
        saved = 1.0 - tiered_bytes / whole_bytes
        parts.append(f"{wire}: {percent(abs(saved))} {'fewer' if saved >= 0 else 'more'} bytes")
    return "<br>".join(reversed(parts))  # in the order of the bars


def _add_curve(figure: go.Figure, row: int, table: Table, tiers: Sequence[Table], plan: Plan) -> None:
    """The share of ids over the number of most popular rows, filled with the colour of each tier."""
    curve = curve_of(table, plan.task.batch_size)
    for tier in tiers:
        assert tier.tier is not None, "tiers_of returns tiers"
        kind = tier.tier.kind
        first, last = max(tier.tier.row_offset, 1), tier.tier.row_offset + tier.num_embeddings
        rows = np.geomspace(first, max(last, first + 1), _POINTS)
        figure.add_trace(
            go.Scatter(
                x=style.rounded(rows),
                y=style.rounded(100.0 * curve.share_of(rows)),
                mode="lines",
                fill="tozeroy",
                fillcolor=style.faded(_TIER_COLOURS[kind], 0.3),
                line={"color": _TIER_COLOURS[kind], "width": 2},
                name=_TIER_NAMES[kind],
                legendgroup=kind,
                showlegend=_is_new(figure, kind),
                hovertemplate="%{y:.1f} % of the ids look up the %{x:,} most popular rows<extra></extra>",
            ),
            row=row,
            col=1,
        )
    figure.update_xaxes(**style.log_axis(1, table.num_embeddings), row=row, col=1)
    figure.update_yaxes(title_text="share of ids, %", range=[0, 103], row=row, col=1)


def _wires(table: Table, plan: Plan) -> dict[str, tuple[Volumes, Volumes]]:
    """What one table sends per step with its tiers, and as a row-wise table, inside and between hosts."""
    task = plan.task
    names = {tier.name for tier in tiers_of(task)[table.name]}
    placed = [(s, rank) for s, rank in zip(plan.shards, plan.ranks, strict=True) if s.table.name in names]
    tiered = plan_volumes(task, [shard for shard, _ in placed], [rank for _, rank in placed])
    alone = replace(task, tables=[table], constraints=UNCONSTRAINED)
    rows = row_shards(table, "row_wise", task.world_size)
    whole = plan_volumes(alone, rows, range(len(rows)))
    wires = ("inside hosts", "between hosts") if task.num_hosts > 1 else ("between ranks",)
    return dict.fromkeys(wires, (tiered, whole))


def _add_wires(figure: go.Figure, row: int, wires: Mapping[str, tuple[Volumes, Volumes]]) -> None:
    """Bars of the bytes of one table inside and between hosts, with and without tiers, stacked by kind (`KINDS`)."""
    bars = {
        (wire, what): volumes
        for wire, pair in wires.items()
        for what, volumes in zip(("tiers", "no tiers"), pair, strict=True)
    }
    for kind in KINDS:
        figure.add_trace(
            go.Bar(
                y=[[wire for wire, _ in bars], [what for _, what in bars]],
                x=style.rounded(_bytes(of, wire, kind) / _MEGABYTE for (wire, _), of in bars.items()),
                orientation="h",
                name=_KIND_NAMES[kind],
                legendgroup=kind,
                marker_color=style.KIND_COLOURS[kind],
                showlegend=_is_new(figure, kind),
                hovertemplate=f"{_KIND_NAMES[kind]}: %{{x:,.3g}} MB per step<extra></extra>",
            ),
            row=row,
            col=2,
        )


def _bytes(volumes: Volumes, wire: str, kind: Kind) -> float:
    of = volumes.across if wire == "between hosts" else volumes.inside
    return float(of[kind].sum())


def _is_new(figure: go.Figure, group: str) -> bool:
    """Whether the legend does not have the group yet."""
    return group not in {trace.legendgroup for trace in figure.data}
