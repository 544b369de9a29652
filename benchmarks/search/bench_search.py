r"""Benchmark of the search: speed against a plain implementation, quality against bounds, scaling.

    OMP_NUM_THREADS=1 python benchmarks/search/bench_search.py  # everything, about 10 minutes on two idle cores
    OMP_NUM_THREADS=1 python benchmarks/search/bench_search.py --tasks 4  # a quick look

    # Gap to the best plan of ten minutes of search, for one task per world size: 22 minutes on one core.
    OMP_NUM_THREADS=1 python benchmarks/search/bench_search.py --tasks 2 --best-tasks 2 --best-seconds 600 --jobs 1 \
        --no-small --largest 0

Without `--models`, costs come from small fixed networks of the paper's sizes (128-32, 32-64-2), for which a tight lower
bound is proved. With `--models data/06_models`, costs come from trained models. The times of the search are compared
with `ScalarOracle`, a plain implementation for the tests (see `search_quality`), and not with any published code. The
runs for scaling use the same models and random tables. After a `make run`, they are repeated with its trained models
and HugeCTR's tables; the times of the repetition are those of a real search. Two processes of one thread each
(`--jobs`) work on the tasks.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from search.small_models import small_models
from search.tasks import random_task
from search.topologies import two_level_topology
from search_quality import COMPARISON_HEADING, against_brute_force, compare_on, report_comparisons, searched
from search_scale import drawn_task, hugectr_task, scale

from neuroshard_pipeline.cost_models.models import load_cost_models
from neuroshard_pipeline.search.greedy_runs import compile_ahead
from neuroshard_pipeline.search.models import Models
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.search.rank_order import collectives_ms, order_ranks

ROOT = Path(__file__).resolve().parents[2]

#: This number divided by a bandwidth in GB/s gives ms per byte.
PER_BYTE = 1e-6


def against_the_oracle(models: Models, num_tasks: int, best_seconds: float, best_tasks: int, jobs: int) -> None:
    """Compare the searches with the oracle on the tasks of `benchmark_task`."""
    print("\nThe oracle (the tests' plain implementation), the beam search (both with the settings of the paper), and")
    print("local search from the beam search's plan (the two together get a tenth of the oracle's time)")
    print(COMPARISON_HEADING)
    compile_ahead()
    with get_context("spawn").Pool(jobs, compile_ahead) as pool:
        comparisons = []
        compare = partial(compare_on, models=models, best_seconds=best_seconds, best_tasks=best_tasks)
        for each in pool.imap_unordered(compare, range(num_tasks)):
            print(each.row, flush=True)
            comparisons.append(each)
        pool.close()
        pool.join()  # leaving the block terminates workers, whose semaphores Python would then report as leaked
    report_comparisons(comparisons)


def rank_order(models: Models, num_tasks: int) -> None:
    """Cost of both collectives on unequal hosts, before and after the ranks of a plan are reordered."""
    topologies = {
        "4 + 4 ranks, one slow uplink": two_level_topology(
            [4, 4], [PER_BYTE / 300] * 2, [PER_BYTE / 50, PER_BYTE / 12]
        ),
        "2 + 6 ranks": two_level_topology([2, 6], [PER_BYTE / 300] * 2, [PER_BYTE / 25] * 2),
        "2 + 2 + 4 ranks, one slow": two_level_topology(
            [2, 2, 4], [PER_BYTE / 300] * 3, [PER_BYTE / b for b in (50, 50, 12)]
        ),
    }
    print("\nRank order on uneven hosts, 8 ranks: both collectives in us, before / after")
    for name, ms_per_byte in topologies.items():
        costs = []
        for index in range(num_tasks):
            task = random_task(np.random.default_rng(3000 + index), 60, 8, 0.6)
            problem, found, _ = searched(task, models)
            placement = problem.placement(found.kinds, found.ranks)
            plan = Plan(task, placement.shards, placement.ranks, "neuroshard")
            ordered = order_ranks(plan, ms_per_byte)
            costs.append([collectives_ms(p.dim_sums, ms_per_byte, task.batch_size) * 1e3 for p in (plan, ordered)])
            assert costs[-1][1] <= costs[-1][0], "ordering ranks made a plan worse"
        pairs = "  ".join(f"{before:.1f}/{after:.1f}" for before, after in costs)
        gain = statistics.mean(1 - after / before for before, after in costs)
        print(f"{name:30s} {pairs}  mean gain {gain:.1%}", flush=True)


def main() -> None:
    """Run all comparisons and print their tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=20, help="tasks compared with the oracle")
    parser.add_argument("--models", type=Path, help="folder of trained cost models")
    parser.add_argument(
        "--largest", type=int, default=5000, help="largest number of tables of the scale runs; 0 for none"
    )
    parser.add_argument("--best-seconds", type=float, default=5.0, help="seconds of long local search per task")
    parser.add_argument("--best-tasks", type=int, default=20, help="number of tasks with a long local search")
    parser.add_argument(
        "--small",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="compare with brute force, and reorder ranks",
    )
    parser.add_argument("--jobs", type=int, default=2, help="processes for the tasks of the oracle")
    parser.add_argument("--figure", type=Path, default=ROOT / "data/08_reporting/search_scale.html")
    parser.add_argument("--data", type=Path, default=ROOT / "data", help="data folder of a `make run`")
    arguments = parser.parse_args()
    models: Models = small_models() if arguments.models is None else load_cost_models(arguments.models)
    trained = (arguments.data / "06_models/compute_cost_model").is_dir()
    if arguments.small:
        against_brute_force(models, 8)
        rank_order(models, 6)
    if arguments.largest:
        what = f"{arguments.models or 'small fixed networks'} and random tables"
        scale(models, what, drawn_task, arguments.largest, None if trained else arguments.figure)
        if trained:
            models_of_run, what = load_cost_models(arguments.data / "06_models"), "trained models and HugeCTR's tables"
            scale(models_of_run, what, hugectr_task, arguments.largest, arguments.figure)
    if arguments.tasks:
        against_the_oracle(models, arguments.tasks, arguments.best_seconds, arguments.best_tasks, arguments.jobs)


if __name__ == "__main__":
    main()
