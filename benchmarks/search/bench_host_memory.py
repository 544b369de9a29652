r"""Compares plans of NeuroShard and of TorchRec's planner for modelled H100s with too little memory for all tables.

    OMP_NUM_THREADS=1 python benchmarks/search/bench_host_memory.py --world-sizes 2 8 --shares 0.5 0.25

Tables that do not fit are in host memory, with or without a cache on the GPU. All ranks together have `--shares` of the
GPU memory that the tables of MLPerf DLRM-v2 need, and each has 128 GiB of host memory. All sharders get the same
limits and memory model. NeuroShard plans with the shipped cost models, and TorchRec's planner with its own formulas;
`torchrec_tuned` (`tuned_torchrec.py`) may use all of its proposers and partitioners, and a dynamic program over GPU and
host memory.
The explicit formulas of `lab.step` give the costs of the plans. For every task and sharder, the script prints the
modelled step, the largest cost of tables in host memory on any rank, and two transfer times over the host link: the
longest of any rank by the lower bounds of the bytes, and the longest by the upper bounds.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import tuned_torchrec
from whole_cost_tasks import suite_tasks

from neuroshard_pipeline.cost_models.models import load_cost_models
from neuroshard_pipeline.errors import NeuroShardError
from neuroshard_pipeline.lab.device import modelled_device
from neuroshard_pipeline.lab.network_presets import network_preset
from neuroshard_pipeline.lab.step import step_cost_ms
from neuroshard_pipeline.search.models import Models
from neuroshard_pipeline.search.params import default_memory
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.sharders.registry import shard
from neuroshard_pipeline.tables.host_memory import host_link_bounds
from neuroshard_pipeline.tables.table import whole
from neuroshard_pipeline.tables.task import ShardingTask

SHARDERS = ("neuroshard_plus", "torchrec", tuned_torchrec.NAME)
HOST_MEMORY_BYTES = 128 * 2**30
DEVICE, NETWORK = modelled_device("h100"), network_preset("h100-ib400")


def tight(task: ShardingTask, share: float) -> ShardingTask:
    """The task with ranks that together have `share` of the GPU memory that its tables need."""
    needed = sum(default_memory().shard_bytes(whole(table), task) for table in task.tables)
    limit = int(share * needed / task.world_size)
    return replace(task, memory_bytes=limit, host_memory_bytes=HOST_MEMORY_BYTES, task_id=f"{task.task_id}-{share:.0%}")


def bounds_ms(plan: Plan) -> tuple[float, float]:
    """Longest time of any rank's reads over its host link, by the lower and by the upper bounds of their bytes."""
    found = np.zeros((plan.task.world_size, 3))
    for each, rank in zip(plan.shards, plan.ranks, strict=True):
        found[rank] += host_link_bounds(each, plan.task)
    low, _, high = (DEVICE.host_link_us(num_bytes) / 1e3 for num_bytes in found.max(axis=0))
    return low, high


def report(task: ShardingTask, sharder: str, models: Models) -> None:
    """Print the modelled costs of one sharder's plan, or why there is none."""
    start = time.perf_counter()
    try:
        of_package = sharder != tuned_torchrec.NAME
        plan = shard(task, models, sharder) if of_package else tuned_torchrec.tuned_plan(task, models)
    except NeuroShardError as error:
        print(f"  {sharder:16s} no plan: {str(error)[:160]}")
        return
    seconds = time.perf_counter() - start
    cost = step_cost_ms(plan.task, plan.shards, plan.ranks, DEVICE, NETWORK)
    kernels = Counter(
        f"cache {table.cache_load_factor:g}" if table.compute_kernel == "fused_uvm_caching" else table.compute_kernel
        for table in plan.task.tables
    )
    low_ms, high_ms = bounds_ms(plan)
    print(
        f"  {sharder:16s} step {cost.step_ms:7.2f} ms, predicted {plan.predicted_cost_ms:7.2f}, host memory "
        f"{cost.host_ms.max():6.2f} (transfers {low_ms:.2f} to {high_ms:.2f}); fullest rank "
        f"{max(plan.memory_bytes) / task.memory_limits[0]:.0%}, host {max(plan.host_memory_bytes) / 2**30:.0f} GiB; "
        f"{seconds:.0f} s; {dict(kernels)}",
        flush=True,
    )


def main() -> None:
    """Plan all tasks and print the modelled costs of the plans."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world-sizes", type=int, nargs="+", default=[2, 8])
    parser.add_argument("--shares", type=float, nargs="+", default=[0.5, 0.25])
    parser.add_argument("--tasks", type=int, default=1, help="tasks per number of ranks")
    arguments = parser.parse_args()
    models = load_cost_models("h100")
    for world_size in arguments.world_sizes:
        for asked in suite_tasks("mlperf", world_size, arguments.tasks):
            for share in arguments.shares:
                task = tight(asked, share)
                print(
                    f"{task.task_id}: {world_size} ranks of {task.memory_limits[0] / 2**30:.1f} GiB, "
                    f"batch {task.batch_size}"
                )
                for sharder in SHARDERS:
                    report(task, sharder, models)


if __name__ == "__main__":
    main()
