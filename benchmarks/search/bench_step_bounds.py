"""Prints lower bounds on the predicted cost of a step (`step_bounds`) beside the plans of `neuroshard_plus`.

OMP_NUM_THREADS=1 python benchmarks/search/bench_step_bounds.py --world-sizes 8 16 --tasks 2
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from step_bounds import PARTS, step_bound
from whole_cost_tasks import SUITES, suite_tasks

from neuroshard_pipeline.cost_models.models import load_cost_models
from neuroshard_pipeline.search.models import Models
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.sharders.registry import shard
from neuroshard_pipeline.tables.task import ShardingTask


def report(tasks: Iterable[ShardingTask], models: Models) -> None:
    """Print the bound and the plan of every task, and the mean gap."""
    print("task                 bound ms   plan ms     gap | bound's parts | plan's means over ranks | bound's types")
    gaps = []
    for task in tasks:
        plan = shard(task, models)
        bound = step_bound(Problem(plan.task, models, plan.memory))
        cost = plan.predicted
        assert cost is not None
        if bound is None:
            print(f"{task.task_id:20s} no bound is proved")
            continue
        gaps.append(cost.embedding_cost_ms / bound.step_ms - 1)
        means = {"compute": cost.compute_ms, "input dist": cost.input_dist_ms, "module": cost.module_ms}
        means |= {"reduction": cost.reduction_ms, "forward": cost.forward_comm_ms, "backward": cost.backward_comm_ms}
        of_bound = "  ".join(f"{name} {bound.parts_ms[name]:.3f}" for name in PARTS)
        of_plan = "  ".join(f"{name} {np.mean(of):.3f}" for name, of in means.items() if of)
        print(
            f"{task.task_id:20s} {bound.step_ms:8.3f} {cost.embedding_cost_ms:9.3f} {gaps[-1]:7.1%} | {of_bound} | "
            f"{of_plan}  mean {np.mean(cost.rank_ms):.3f} | {dict(bound.types)}",
            flush=True,
        )
        assert gaps[-1] > -1e-9, "a plan is cheaper than the lower bound of its task"
    print(f"mean gap of {len(gaps)} tasks: {np.mean(gaps):.1%}")


def main() -> None:
    """Print the bounds of tasks of the suites."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suites", nargs="*", choices=list(SUITES), default=list(SUITES))
    parser.add_argument("--world-sizes", nargs="*", type=int, default=[8, 16])
    parser.add_argument("--tasks", type=int, default=2, help="number of tasks per suite and world size")
    parser.add_argument("--device", default="h100", help="GPU whose shipped models are used")
    parser.add_argument("--models", type=Path, help="folder of trained cost models, in place of shipped ones")
    arguments = parser.parse_args()
    models: Models = load_cost_models(arguments.models or arguments.device)
    each = itertools.product(arguments.world_sizes, arguments.suites)
    report(itertools.chain(*(suite_tasks(suite, ranks, arguments.tasks) for ranks, suite in each)), models)


if __name__ == "__main__":
    main()
