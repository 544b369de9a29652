"""Time of the searches against tables and ranks, as a table, growth rates and a figure."""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
from search.tasks import random_task
from search_quality import searched

from neuroshard_pipeline.search.params import REFINEMENT
from neuroshard_pipeline.search.placement import prepare
from neuroshard_pipeline.search.refine import refine
from neuroshard_pipeline.search.simulator import Models

#: (tables, ranks): tables at 64 ranks, ranks at 1,000 tables, and the largest.
SIZES = [(250, 64), (500, 64), (1000, 64), (2000, 64), (1000, 16), (1000, 32), (1000, 128), (5000, 512)]


@dataclass(frozen=True)
class Timing:
    """Seconds of `neuroshard` and of `neuroshard_plus` (which includes it) for a task, and costs in ms."""

    tables: int
    ranks: int
    seconds: float
    plus_seconds: float
    cost_ms: float
    plus_ms: float
    peak_gib: float


def timing(models: Models, tables: int, ranks: int) -> Timing:
    """One task at the paper's settings, then the local search of `neuroshard_plus` with its default rounds."""
    task = random_task(np.random.default_rng(0), tables, ranks, 0.6)
    kinds, placement, seconds = searched(task, models)
    start = time.perf_counter()
    found = refine(placement, kinds, REFINEMENT, np.random.default_rng(0))
    plus_seconds = seconds + time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return Timing(tables, ranks, seconds, plus_seconds, placement.cost / 1e9, found.cost / 1e9, peak)


def scale(models: Models, largest: int, figure: Path | None) -> None:
    """Print the table and the growth rates; draw the figure."""
    prepare()  # compiled code is loaded once per process
    print("\nScale: seconds of neuroshard (paper's settings) and neuroshard_plus (200 rounds)")
    print("tables ranks | neuroshard    plus | lower by | peak memory of the process GiB")
    timings = []
    for tables, ranks in SIZES:
        if tables > largest:
            continue
        each = timing(models, tables, ranks)
        timings.append(each)
        print(
            f"{tables:6d} {ranks:5d} | {each.seconds:10.2f} {each.plus_seconds:7.2f} | "
            f"{1 - each.plus_ms / each.cost_ms:8.2%} | {each.peak_gib:.2f}",
            flush=True,
        )
    by_tables = sorted((t for t in timings if t.ranks == 64), key=lambda t: t.tables)
    by_ranks = sorted((t for t in timings if t.tables == 1000), key=lambda t: t.ranks)
    print(
        f"time grows with tables as n^{_exponent([t.tables for t in by_tables], by_tables):.2f} (64 ranks), "
        f"with ranks as n^{_exponent([t.ranks for t in by_ranks], by_ranks):.2f} (1,000 tables)"
    )
    if figure is not None:
        figure.parent.mkdir(parents=True, exist_ok=True)
        _figure(by_tables, by_ranks).write_html(figure, include_plotlyjs=True)
        print(f"figure: {figure}")


def _exponent(sizes: list[int], timings: list[Timing]) -> float:
    """Slope of log time against log size."""
    if len(sizes) < 2:
        return float("nan")
    return float(np.polyfit(np.log(sizes), np.log([t.seconds for t in timings]), 1)[0])


def _figure(by_tables: list[Timing], by_ranks: list[Timing]) -> go.Figure:
    figure = go.Figure()
    for name, sizes, timings in (
        ("tables, at 64 ranks", [t.tables for t in by_tables], by_tables),
        ("ranks, at 1,000 tables", [t.ranks for t in by_ranks], by_ranks),
    ):
        figure.add_scatter(x=sizes, y=[t.seconds for t in timings], name=f"neuroshard against {name}")
        figure.add_scatter(
            x=sizes, y=[t.plus_seconds for t in timings], name=f"neuroshard_plus against {name}", line_dash="dot"
        )
    return figure.update_layout(
        title="Time of the searches, one thread",
        xaxis={"title": "tables, or ranks", "type": "log"},
        yaxis={"title": "seconds", "type": "log"},
    )
