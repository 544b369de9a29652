r"""How far are steps on virtual ranks above the bytes between hosts and the computation that every plan needs?

    python benchmarks/virtual/link_bound.py data/virtual-5 --gbit 5        # after `--env virtual --pipeline truth`

Reads the newest tasks, plans and step records of `truth`. For every sharder, it prints means over tasks: the measured
step, its computation, transfers and waits (means over ranks), and how long the bytes between hosts (`search.volumes`)
take if the cards of all hosts always send. The last row is a rough lower bound. It adds the least computation of all
sharders to the time of the fewest bytes: every table has the sharding type with the fewest bytes between hosts,
whatever its memory, balance and latencies.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from part_errors import KEYS, newest

from neuroshard_pipeline.evaluation.plan_frames import shards_from_frame
from neuroshard_pipeline.search.volumes import plan_volumes
from neuroshard_pipeline.tables.frames import tasks_from_frame
from neuroshard_pipeline.tables.row_blocks import row_shards
from neuroshard_pipeline.tables.table import Shard, Table, whole
from neuroshard_pipeline.tables.task import ShardingTask

PARTS = {"step_ms": "step", "computed_ms": "computation", "transfer_ms": "transfers", "waiting_ms": "waits"}


def link_ms(task: ShardingTask, shards: Sequence[Shard], ranks: Sequence[int], gbit: float) -> float:
    """Time in which the cards of all hosts together send the bytes of a plan to other hosts."""
    volumes = plan_volumes(task, shards, ranks).across.values()
    return float(sum(of.sum() for of in volumes)) / task.num_hosts / (gbit * 1e6 / 8)


def least_link_ms(task: ShardingTask, table: Table, gbit: float) -> float:
    """The lowest `link_ms` of one table."""
    found = []
    for name in task.possible_types(table):
        count = {"column_wise": 1, "table_row_wise": task.ranks_per_host}.get(name, task.world_size)
        if name in ("row_wise", "table_row_wise"):
            shards = row_shards(table, name, count)
        elif name in ("column_wise", "data_parallel"):
            shards = [whole(table, name)] * count
        else:
            continue
        found.append(link_ms(task, shards, range(len(shards)), gbit))
    return min(found)


def measured_parts(folder: Path, costs: pd.DataFrame) -> pd.DataFrame:
    """Measured ms of every plan, means over its ranks and steps."""
    paths = (folder / "07_model_output/truth_step_records").rglob("*.parquet")
    records = pd.concat([pd.read_parquet(path) for path in sorted(paths)])
    of_plan = records[records["timed"]].groupby(KEYS)[list(PARTS)].mean().rename(columns=PARTS)
    return of_plan.reindex(costs.set_index(KEYS).index.unique()).dropna()


def main() -> None:
    """Print the table of a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gbit", type=float, required=True, help="Gbit/s of a host's card")
    arguments = parser.parse_args()
    folder, gbit = arguments.folder, arguments.gbit
    costs, shards = (newest(folder, f"truth_plan{name}.parquet") for name in ("_costs", "s"))
    drawn = map(pd.read_parquet, sorted((folder / "03_primary/truth_tasks.parquet").rglob("*.parquet"), reverse=True))
    of_plans = next(frame for frame in drawn if set(shards["task_id"]) <= set(frame["task_id"]))
    tasks = {task.task_id: task for task in tasks_from_frame(of_plans)}
    found = measured_parts(folder, costs)
    of_plan = {key: shards_from_frame(rows, tasks[key[0]]) for key, rows in shards.groupby(KEYS)}
    found["between hosts"] = [link_ms(tasks[key[0]], *of_plan[key], gbit) for key in found.index]
    bound = found.groupby("task_id")[["computation"]].min()
    least = {name: sum(least_link_ms(task, each, gbit) for each in task.tables) for name, task in tasks.items()}
    bound["between hosts"] = pd.Series(least)
    bound["step"] = bound.sum(axis=1)
    ratios = found["step"].div(bound["step"], level="task_id").groupby("sharder").mean()
    table = found.groupby("sharder").mean().assign(**{"step / bound": ratios})
    table.loc["bound"] = bound.mean()
    print(f"{folder}: means over {len(tasks)} tasks, in ms\n{table.round(2).to_string()}")


if __name__ == "__main__":
    main()
