r"""Duration and predicted cost of `neuroshard_plus` with all sharding types, by number of tables and ranks.

    OMP_NUM_THREADS=1 python benchmarks/search/bench_step_scale.py                                  # all sizes
    OMP_NUM_THREADS=1 python benchmarks/search/bench_step_scale.py --sizes 1000x128 5000x512 10000x1024
    python benchmarks/search/bench_step_scale.py --sizes --suites published tiny --world-sizes 8 16 128

Costs come from the shipped models of `--device`, or from `--models`, a folder of trained ones. A task of `--sizes`
has the first of HugeCTR's 510 tables, or all of them repeatedly; its tables fill 60 % of the memory, and it has up to 8
ranks per host and 1,024 samples per rank. The names of `--suites` are those of `whole_cost_tasks`. The program prints
one row per task: wall and CPU seconds, predicted cost, peak memory of the process, and number of tables per sharding
type. With `--profile`, it also prints the functions with most time. Other programs on the machine change CPU seconds
less than wall seconds.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from search_scale import hugectr_task
from whole_cost_tasks import RANKS_PER_HOST, SUITES, suite_tasks

from neuroshard_pipeline.cost_models.models import load_cost_models
from neuroshard_pipeline.search.greedy_runs import compile_ahead
from neuroshard_pipeline.search.models import Models
from neuroshard_pipeline.sharders.registry import shard
from neuroshard_pipeline.tables.task import ShardingTask

#: From one table on two ranks to the largest task; few tables on many ranks, and many on few, are among them.
SIZES = ("1x2", "1x8", "3x64", "50x4", "100x1024", "5000x8", "1000x128", "5000x512", "10000x1024")
LOCAL_BATCH = 1024


def scale_task(size: str) -> ShardingTask:
    """The task of a size such as `1000x128`: 1,000 tables on 128 ranks."""
    tables, ranks = map(int, size.split("x"))
    task = hugectr_task(tables, ranks)
    local = min(ranks, RANKS_PER_HOST)
    return replace(task, batch_size=ranks * LOCAL_BATCH, local_world_size=local, task_id=f"hugectr-{size}")


def chosen_tasks(arguments: argparse.Namespace) -> Iterator[ShardingTask]:
    """The tasks that the arguments name."""
    yield from map(scale_task, arguments.sizes)
    for world_size in arguments.world_sizes:
        for suite in arguments.suites:
            yield from suite_tasks(suite, world_size, arguments.tasks)


def solved(task: ShardingTask, models: Models) -> str:
    """Shard the task and return its row."""
    wall, processor = time.perf_counter(), time.process_time()
    plan = shard(task, models)
    wall, processor = time.perf_counter() - wall, time.process_time() - processor
    kinds = Counter({s.table.name: s.sharding_type for s in plan.shards}.values())
    peak_gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    types = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    return f"{wall:8.2f} {processor:8.2f} {plan.predicted_cost_ms:12.6f} {peak_gib:6.2f}  {types}"


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="*", default=SIZES, help="numbers of tables and ranks, such as 1000x128")
    parser.add_argument("--suites", nargs="*", choices=list(SUITES), default=[])
    parser.add_argument("--world-sizes", nargs="*", type=int, default=[8], help="ranks of the tasks of the suites")
    parser.add_argument("--tasks", type=int, default=3, help="tasks per suite and number of ranks")
    parser.add_argument("--device", default="h100", help="device of the shipped models")
    parser.add_argument("--models", type=Path, help="folder of trained cost models, in place of shipped ones")
    parser.add_argument("--profile", type=int, default=0, metavar="N", help="print the N functions with most time")
    arguments = parser.parse_args()
    models: Models = load_cost_models(arguments.models or arguments.device)
    compile_ahead()  # compiled code is loaded once per process
    print("task                    wall s    CPU s predicted ms    GiB  tables of each type")
    for task in chosen_tasks(arguments):
        with cProfile.Profile(time.process_time) if arguments.profile else nullcontext() as profile:
            row = solved(task, models)
        print(f"{task.task_id:20s} {row}", flush=True)
        if profile is not None:
            pstats.Stats(profile).sort_stats("tottime").print_stats(arguments.profile)


if __name__ == "__main__":
    main()
