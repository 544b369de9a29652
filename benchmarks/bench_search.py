"""Search: speed against one plan at a time, quality against more time, and scale.

    OMP_NUM_THREADS=1 python benchmarks/bench_search.py            # everything, about 15 minutes
    OMP_NUM_THREADS=1 python benchmarks/bench_search.py --tasks 4  # a quick look

Without `--models`, costs come from small fixed networks of the paper's sizes (128-32, 32-64-2); with
`--models data/06_models`, from trained ones. The scalar oracle is the plain implementation of the tests.
"""

from __future__ import annotations

import argparse
import dataclasses
import resource
import statistics
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from search.brute_force import best_placement_ms, best_with_halvings_ms
from search.scalar_oracle import ScalarOracle
from search.small_models import small_models
from search.tasks import random_task

from neuroshard_pipeline.search.bounds import cost_bound, shape_of
from neuroshard_pipeline.search.columns import beam_search
from neuroshard_pipeline.search.kinds import ShardKinds
from neuroshard_pipeline.search.memory import WEIGHTS_AND_OPTIMIZER
from neuroshard_pipeline.search.params import PAPER_SEARCH, REFINEMENT
from neuroshard_pipeline.search.rank_order import collectives_ms, order_ranks, two_level_topology
from neuroshard_pipeline.search.refine import refine
from neuroshard_pipeline.search.simulator import Models, with_predicted_cost
from neuroshard_pipeline.tables.task import ShardingTask

NEVER = 10**9

#: Divided by a bandwidth in GB/s: ms per byte.
PER_BYTE = 1e-6

#: What is compared here is the predicted cost: local search without the caution that measured costs ask for.
PREDICTED_ONLY = REFINEMENT.model_copy(update={"max_rounds": NEVER, "caution": 0.0})


def timed(work):
    """Result of `work()` and its seconds."""
    start = time.perf_counter()
    result = work()
    return result, time.perf_counter() - start


def searched(task: ShardingTask, models: Models):
    """Kinds, placement and seconds of the paper's search."""
    start = time.perf_counter()
    kinds = ShardKinds(task, models, WEIGHTS_AND_OPTIMIZER)
    placement = beam_search(kinds, PAPER_SEARCH)
    return kinds, placement, time.perf_counter() - start


def refined_ms(kinds, placement, seconds: float, seed: int = 0) -> float:
    """Cost after `seconds` of local search."""
    params = PREDICTED_ONLY.model_copy(update={"time_budget_seconds": seconds})
    return refine(placement, kinds, params, np.random.default_rng(seed)).cost / 1e9


def against_the_oracle(models: Models, num_tasks: int) -> None:
    """Half of the tasks for 4 ranks with 10-60 tables, half for 8 ranks with 20-120."""
    print("\nOne plan at a time against all in lockstep, paper's settings, and local search in a tenth of the time")
    print("task  ranks tables | oracle s  engine s  ratio | oracle ms  engine ms |  plus s  plus ms  lower by")
    ratios, gains = [], []
    for index in range(num_tasks):
        rng = np.random.default_rng(index)
        world_size = 4 if index % 2 == 0 else 8
        task = random_task(rng, int(rng.integers(10, 61)) * world_size // 4, world_size, 0.6)
        runs = [searched(task, models) for _ in range(3)]
        kinds, placement, _ = runs[0]
        engine_seconds = statistics.median(seconds for *_, seconds in runs)
        oracle = ScalarOracle(task, models, WEIGHTS_AND_OPTIMIZER, PAPER_SEARCH)
        (oracle_ms, _), oracle_seconds = timed(oracle.search)
        budget = max(oracle_seconds / 10 - engine_seconds, 0.0)
        plus_ms = refined_ms(kinds, placement, budget)
        ratios.append(oracle_seconds / engine_seconds)
        gains.append(1 - plus_ms / oracle_ms)
        print(
            f"{index:4d}  {world_size:5d} {len(task.tables):6d} | {oracle_seconds:8.2f}  {engine_seconds:8.4f} "
            f"{ratios[-1]:6.0f} | {oracle_ms:9.4f}  {placement.cost / 1e9:9.4f} | {budget:7.2f} {plus_ms:8.4f} "
            f"{gains[-1]:8.2%}",
            flush=True,
        )
        assert abs(placement.cost / 1e9 - oracle_ms) < 1e-5, "the engine found another cost than the oracle"
        assert plus_ms <= oracle_ms + 1e-5, "local search returned a worse plan"
    print(f"median ratio {statistics.median(ratios):.0f}, mean gain of local search {statistics.mean(gains):.2%}")


def against_brute_force(models: Models, num_tasks: int) -> None:
    """Tiny tasks, where everything can be tried."""
    print("\nAgainst brute force, 2 ranks (ms): table-wise over all placements; with splits over up to 2 halvings")
    print("task tables | brute force  searched     gap | tables | brute force  searched     gap  refined     gap")
    for index in range(num_tasks):
        rng = np.random.default_rng(1000 + index)
        task = random_task(rng, int(rng.integers(3, 7)), 2, 0.3)
        whole_tables = PAPER_SEARCH.model_copy(update={"max_steps": 0})
        oracle = ScalarOracle(task, models, WEIGHTS_AND_OPTIMIZER, whole_tables)
        best = best_placement_ms(oracle, [(i, table.embedding_dim) for i, table in enumerate(task.tables)])
        found = beam_search(ShardKinds(task, models, WEIGHTS_AND_OPTIMIZER), whole_tables).cost / 1e9
        tiny = dataclasses.replace(task, tables=task.tables[:3])
        two_splits = PAPER_SEARCH.model_copy(update={"max_steps": 2})
        best_split = best_with_halvings_ms(ScalarOracle(tiny, models, WEIGHTS_AND_OPTIMIZER, two_splits), 2)
        kinds = ShardKinds(tiny, models, WEIGHTS_AND_OPTIMIZER)
        placement = beam_search(kinds, two_splits)
        split, plus = placement.cost / 1e9, refined_ms(kinds, placement, 0.2)
        print(
            f"{index:4d} {len(task.tables):6d} | {best:11.4f} {found:9.4f} {found / best - 1:7.2%} | {3:6d} | "
            f"{best_split:11.4f} {split:9.4f} {split / best_split - 1:7.2%} {plus:8.4f} {plus / best_split - 1:7.2%}"
        )


def against_lower_bounds(models: Models, num_tasks: int) -> None:
    """How far the plans may be from the best one, by what no plan can cost less than."""
    shape = None if shape_of(models) else "convex"  # the fixed networks: non-negative weights and a ReLU head
    print(
        f"\nAgainst a proved lower bound ({shape or shape_of(models)} compute model), paper's settings, then 2 s more"
    )
    print(
        "task ranks tables | compute of the busiest rank: bound  refined    gap | embedding cost: bound  refined    gap"
    )
    for index in range(num_tasks):
        rng = np.random.default_rng(2000 + index)
        world_size = 4 if index % 2 == 0 else 8
        task = random_task(rng, int(rng.integers(10, 61)) * world_size // 4, world_size, 0.6)
        kinds, placement, _ = searched(task, models)
        params = PREDICTED_ONLY.model_copy(update={"time_budget_seconds": 2.0})
        found = refine(placement, kinds, params, rng)
        plan = with_predicted_cost(kinds.plan(found.kinds, found.ranks, "refined"), models)
        bound = cost_bound(kinds, shape)
        assert plan.predicted is not None
        assert bound is not None
        busiest, total = max(plan.predicted.compute_ms), plan.predicted.embedding_cost_ms
        assert bound.compute_ms <= busiest, "a plan is cheaper than its lower bound"
        assert bound.embedding_cost_ms <= total, "a plan is cheaper than its lower bound"
        print(
            f"{index:4d} {world_size:5d} {len(task.tables):6d} | {bound.compute_ms:34.4f} {busiest:8.4f} "
            f"{busiest / bound.compute_ms - 1:6.1%} | {bound.embedding_cost_ms:21.4f} {total:8.4f} "
            f"{total / bound.embedding_cost_ms - 1:6.1%}",
            flush=True,
        )


def rank_order(models: Models, num_tasks: int) -> None:
    """What renaming a plan's ranks saves where hosts differ, against the order that the search happened to give."""
    topologies = {
        "4 + 4 ranks, one slow uplink": two_level_topology(
            [4, 4], [PER_BYTE / 300] * 2, [PER_BYTE / 50, PER_BYTE / 12]
        ),
        "2 + 6 ranks": two_level_topology([2, 6], [PER_BYTE / 300] * 2, [PER_BYTE / 25] * 2),
        "2 + 2 + 4 ranks, one slow": two_level_topology(
            [2, 2, 4], [PER_BYTE / 300] * 3, [PER_BYTE / b for b in (50, 50, 12)]
        ),
    }
    print("\nRank order on uneven hosts, 8 ranks: both collectives in us, as found / ordered")
    for name, ms_per_byte in topologies.items():
        costs = []
        for index in range(num_tasks):
            task = random_task(np.random.default_rng(3000 + index), 60, 8, 0.6)
            kinds, placement, _ = searched(task, models)
            plan = kinds.plan(placement.kinds, placement.ranks, "neuroshard")
            ordered = order_ranks(plan, ms_per_byte)
            costs.append([collectives_ms(p.dim_sums, ms_per_byte, task.batch_size) * 1e3 for p in (plan, ordered)])
            assert costs[-1][1] <= costs[-1][0], "ordering ranks made a plan worse"
        pairs = "  ".join(f"{before:.1f}/{after:.1f}" for before, after in costs)
        gain = statistics.mean(1 - after / before for before, after in costs)
        print(f"{name:30s} {pairs}  mean gain {gain:.1%}", flush=True)


def scale(models: Models, sizes: list[tuple[int, int]]) -> None:
    """Time against tables and ranks."""
    print("\nScale, paper's settings, then local search of 5 s")
    print("tables ranks | seconds      ms  splits | lower by  largest / mean compute | peak memory GiB")
    for num_tables, world_size in sizes:
        task = random_task(np.random.default_rng(0), num_tables, world_size, 0.6)
        kinds, placement, seconds = searched(task, models)
        plus_ms = refined_ms(kinds, placement, 5.0)
        load = np.bincount(placement.ranks, weights=kinds.cost[placement.kinds], minlength=world_size)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(
            f"{num_tables:6d} {world_size:5d} | {seconds:7.2f} {placement.cost / 1e9:7.3f} "
            f"{len(placement.kinds) - num_tables:7d} | {1 - plus_ms * 1e9 / placement.cost:8.2%} "
            f"{load.max() / load.mean():23.3f} | {peak:15.2f}",
            flush=True,
        )


def main() -> None:
    """Run all comparisons and print their tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=20, help="tasks compared with the oracle")
    parser.add_argument("--models", type=Path, help="folder of trained cost models")
    parser.add_argument("--largest", type=int, default=5000, help="most tables of the scale runs")
    arguments = parser.parse_args()
    models: Models = small_models()
    if arguments.models is not None:
        from neuroshard_pipeline.cost_models.models import load_cost_models

        models = load_cost_models(arguments.models)
    against_brute_force(models, 8)
    against_lower_bounds(models, 8)
    rank_order(models, 6)
    sizes = [(125, 16), (250, 32), (500, 64), (1000, 64), (1000, 128), (2000, 128), (5000, 512)]
    scale(models, [size for size in sizes if size[0] <= arguments.largest])
    if arguments.tasks:
        against_the_oracle(models, arguments.tasks)


if __name__ == "__main__":
    main()
