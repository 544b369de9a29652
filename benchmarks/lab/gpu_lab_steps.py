"""The steps part of benchmarks/lab/check_gpu_lab.py: the lab beside published steps that it was not fitted to."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import yaml
from gpu_lab_points import PREDICTED, Aim, Check, Point

import neuroshard_pipeline as ns
from neuroshard_pipeline.lab.device import modelled_device
from neuroshard_pipeline.lab.network_presets import network_preset
from neuroshard_pipeline.lab.step import step_cost_ms, step_params
from neuroshard_pipeline.lab.step_groups import Job, StepParams
from neuroshard_pipeline.tables.profile import expected_rows
from neuroshard_pipeline.tables.row_blocks import row_shards
from neuroshard_pipeline.tables.table import Shard, Table, whole
from neuroshard_pipeline.tables.task import ShardingTask

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED = ROOT / "data" / "01_raw" / "published" / "steps.yml"
AIM = Aim("steps and kernels that nothing was fitted to", {"median": 0.20, "worst error": 0.40})
_FEATURES_OF_TASK = ("optimizer", "index_dedup", "pipelines_input_dist", "comm_precision")
_FEATURES_OF_TABLE = ("pooling", "compute_kernel", "cache_load_factor")
_ROOMY = 2**40
#: Numbers of `lab.step` by the source that they come from; without the source, they are 0.
OF_SOURCES = {
    "without FBGEMM#2346": {"pooled_sort_ns": 0.0, "sequence_sort_ns": 0.0},
    "without torchrec#2365": {"lookup_host_us": 0.0},
    "without torchrec#4624": {"permute_segment_ns": 0.0, "permute_number_ns": 0.0},
}


def check_steps(path: Path) -> Check:
    """Predict the rows of a file such as data/01_raw/published/steps.yml.

    Bounds and the rows that a number of the lab comes from count towards no aim.
    """
    points = []
    for row in yaml.safe_load(path.read_text()):
        aim = None if row["what"] in ("bound", "sort", "permutation") else AIM.name
        what = f"{row['name']} ({row['what']})"
        points.append(
            Point(row["source"], row["gpu"], row["what"], row["us"], _predicted_us(row), PREDICTED, aim, what)
        )
    return Check(f"Steps: {path}", points, [AIM])


def steps_table(check: Check) -> str:
    """All rows of the check: published and modelled milliseconds, and their ratio."""
    rows = [
        (
            point.what,
            point.device,
            point.published_us / 1e3,
            point.predicted_us / 1e3,
            point.predicted_us / point.published_us,
        )
        for point in check.points
    ]
    frame = pd.DataFrame(rows, columns=["row", "GPU", "published ms", "lab ms", "lab / published"])
    return str(frame.to_string(index=False, float_format="{:.2f}".format))


def left_out_table(path: Path) -> str:
    """The modelled milliseconds of whole steps without the terms of one source at a time."""
    steps = [row for row in yaml.safe_load(path.read_text()) if row["what"] == "step"]
    columns = {"row": [row["name"] for row in steps]}
    for name, values in OF_SOURCES.items():
        host = step_params().model_copy(update=values)
        columns[name] = [round(_predicted_us(row, host) / 1e3, 2) for row in steps]
    return str(pd.DataFrame(columns).to_string(index=False))


def _predicted_us(row: dict[str, Any], host: StepParams | None = None) -> float:
    if row["what"] == "copy":
        return float(_job(row).kernels_us(float(row["bytes"]), row.get("kernels", 1))[0])
    if row["what"] == "sort":
        return float(step_params().sort_ns(row["order"] == "kept") / 1e3 * row["ids_sorted"])
    if row["what"] == "permutation":
        segments = float(row["segments"])
        values = 4.0 * row["numbers"]
        return float(_job(row).permuted_us(4.0 * segments, 0.0, values)[0])
    us = _step_us(row, row.get("compute_kernel", "fused"), host)
    if row["what"] == "added":
        return us - _step_us({name: row[name] for name in row if name != "cache_load_factor"}, "fused")
    return us + float(_job(row).kernels_us(float(row.get("beside_bytes", 0)))[0])


def _step_us(row: dict[str, Any], compute_kernel: str, host: StepParams | None = None) -> float:
    task = _task({**row, "compute_kernel": compute_kernel})
    device, network = modelled_device(row["gpu"]), network_preset(row["network"])
    if row["sharding_type"] == "planned":
        plan = ns.shard(task, ns.load_cost_models(row["gpu"]))
        return 1e3 * step_cost_ms(plan.task, plan.shards, plan.ranks, device, network).step_ms
    placed = list(itertools.chain.from_iterable(_placed(row, table, at) for at, table in enumerate(task.tables)))
    shards, ranks = [shard for shard, _ in placed], [rank for _, rank in placed]
    return 1e3 * step_cost_ms(task, shards, ranks, device, network, host).step_ms


def _placed(row: dict[str, Any], table: Table, position: int) -> list[tuple[Shard, int]]:
    if row["sharding_type"] == "table_wise":
        return [(whole(table), position % row["ranks"])]
    return list(zip(row_shards(table, row["sharding_type"], row["ranks"]), range(row["ranks"]), strict=False))


def _task(row: dict[str, Any]) -> ShardingTask:
    """The task of a row; all tables are alike but for their numbers of rows, unless the row names a file of tables."""
    ranks, batch_size = row["ranks"], row["ranks"] * row["local_batch"]
    options = {name: row[name] for name in _FEATURES_OF_TASK if name in row}
    if "tables" in row:
        return ShardingTask(ns.read_tables(ROOT / row["tables"]), ranks, batch_size, 64 * 2**30, **options)
    of_table = {name: row[name] for name in _FEATURES_OF_TABLE if name in row}
    rows = row["rows"] if isinstance(row["rows"], list) else [row["rows"]] * row["count"]
    tables = [
        Table(f"table_{index}", number, row["dim"], float(row["pooling_factor"]), **of_table)
        for index, number in enumerate(rows)
    ]
    if row["ids"] == "uniform":
        tables = [uniform(table, batch_size) for table in tables]
    return ShardingTask(tables, ranks, batch_size, _ROOMY, host_memory_bytes=_ROOMY, **options)


def uniform(table: Table, batch_size: int) -> Table:
    """The table with the profile and the popularity curve of ids that are drawn evenly from all rows."""
    number, ids = table.num_embeddings, round(batch_size * table.pooling_factor)
    found = expected_rows(np.array([float(number)]), np.array([1.0 / number]), ids)
    reuse = tuple((found / found.sum()).tolist())
    return replace(table, unique_rows=float(min(found.sum(), number)), reuse=reuse, popularity=((float(number), 1.0),))


def _job(row: dict[str, Any]) -> Job:
    """One rank of the row's GPU."""
    task = ShardingTask([Table("any", 1, 4, 1.0)], 1, 1, _ROOMY)
    return Job(task, modelled_device(row["gpu"]), network_preset("h100-ib400"), step_params())
