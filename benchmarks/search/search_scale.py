"""Measures how the time of the searches grows with the numbers of tables and ranks; prints rows, draws a figure."""

from __future__ import annotations

import dataclasses
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
from search.settings import LOCAL_SEARCH, WEIGHTS_AND_OPTIMIZER
from search.tasks import random_task
from search_quality import searched

from neuroshard_pipeline.search.greedy_runs import compile_ahead
from neuroshard_pipeline.search.local_search import local_search
from neuroshard_pipeline.search.models import Models
from neuroshard_pipeline.tables.table_file import read_tables
from neuroshard_pipeline.tables.task import ShardingTask

HUGECTR_TABLES = Path(__file__).resolve().parents[2] / "data/01_raw/hugectr_t510.csv"

#: (tables, ranks): several numbers of tables for 64 ranks, several numbers of ranks for 1,000 tables, two large tasks.
SIZES = [(250, 64), (500, 64), (1000, 64), (2000, 64), (1000, 16), (1000, 32), (1000, 128), (5000, 512), (10000, 1024)]

#: Share of the memory of all ranks that the tables of a task fill.
MEMORY_FILL = 0.6


@dataclass(frozen=True)
class Timing:
    """Seconds of `neuroshard` and of `neuroshard_plus` (which includes it) for a task, and costs of their plans in ms.

    `peak_gib` is the peak memory of the process so far.
    """

    tables: int
    ranks: int
    seconds: float
    plus_seconds: float
    cost_ms: float
    plus_ms: float
    peak_gib: float


def drawn_task(tables: int, ranks: int) -> ShardingTask:
    """A task with random tables."""
    return random_task(np.random.default_rng(0), tables, ranks, MEMORY_FILL)


def hugectr_task(tables: int, ranks: int) -> ShardingTask:
    """A task with the first `tables` of the 510 tables of HugeCTR's benchmark; more than 510 repeat them."""
    original = read_tables(HUGECTR_TABLES)
    repeated = [dataclasses.replace(original[i % len(original)], name=f"t{i:05d}") for i in range(tables)]
    probe = ShardingTask(repeated, ranks, 512, 2**60)
    needed = sum(WEIGHTS_AND_OPTIMIZER.table_bytes(table, table.embedding_dim, probe) for table in repeated)
    return dataclasses.replace(probe, memory_bytes=int(needed / MEMORY_FILL / ranks))


def timing(models: Models, task: ShardingTask) -> Timing:
    """Time the search of the paper, and then the local search of `neuroshard_plus` with its default rounds."""
    problem, placed, seconds = searched(task, models)
    start = time.perf_counter()
    found = local_search(placed, problem, LOCAL_SEARCH, np.random.default_rng(0))[0]
    plus_seconds = seconds + time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    costs_ms = placed.cost / 1e9, found.cost / 1e9
    return Timing(len(task.tables), task.world_size, seconds, plus_seconds, *costs_ms, peak)


def scale(
    models: Models, what: str, task_of: Callable[[int, int], ShardingTask], largest: int, figure: Path | None
) -> None:
    """Print the table and the growth rates, and draw the figure.

    Args:
        models: cost models.
        what: models and tables in words, for the heading.
        task_of: makes a task from a number of tables and a number of ranks.
        largest: largest number of tables.
        figure: HTML file to write, or None.
    """
    compile_ahead()  # compiled code is loaded once per process
    print(f"\nScale with {what}: seconds of neuroshard (the paper's settings) and of neuroshard_plus (with")
    print(f"{LOCAL_SEARCH.max_rounds} rounds of local search), one thread")
    print("tables ranks | neuroshard    plus | lower by | peak memory of the process GiB")
    timings = []
    for tables, ranks in SIZES:
        if tables > largest:
            continue
        each = timing(models, task_of(tables, ranks))
        timings.append(each)
        print(
            f"{tables:6d} {ranks:5d} | {each.seconds:10.2f} {each.plus_seconds:7.2f} | "
            f"{1 - each.plus_ms / each.cost_ms:8.2%} | {each.peak_gib:.2f}",
            flush=True,
        )
    by_tables = sorted((t for t in timings if t.ranks == 64), key=lambda t: t.tables)
    by_ranks = sorted((t for t in timings if t.tables == 1000), key=lambda t: t.ranks)
    print(
        "time of neuroshard grows "
        f"with tables as n^{_exponent([t.tables for t in by_tables], by_tables):.2f} (64 ranks), "
        f"with ranks as n^{_exponent([t.ranks for t in by_ranks], by_ranks):.2f} (1,000 tables)"
    )
    if figure is not None:
        figure.parent.mkdir(parents=True, exist_ok=True)
        _figure(what, by_tables, by_ranks).write_html(figure, include_plotlyjs=True)
        print(f"figure: {figure}")


def _exponent(sizes: list[int], timings: list[Timing]) -> float:
    """Slope of the logarithm of the time of `neuroshard` against the logarithm of the size."""
    if len(sizes) < 2:
        return float("nan")
    return float(np.polyfit(np.log(sizes), np.log([t.seconds for t in timings]), 1)[0])


def _figure(what: str, by_tables: list[Timing], by_ranks: list[Timing]) -> go.Figure:
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
        title=f"Time of the searches with {what}, one thread",
        xaxis={"title": "tables, or ranks", "type": "log"},
        yaxis={"title": "seconds", "type": "log"},
    )
