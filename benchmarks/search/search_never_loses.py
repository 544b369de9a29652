"""Is a plan of `neuroshard_plus` ever predicted dearer than the plan of another sharder, priced by the same models?

    OMP_NUM_THREADS=1 python benchmarks/search/search_never_loses.py --tasks 500 --seed 1 --models h100 data/06_models
    OMP_NUM_THREADS=1 python benchmarks/search/search_never_loses.py --read never_loses-*.jsonl

Random legal tasks (`random_tasks`) are solved by `neuroshard_plus` and by every sharder that uses no measurement of
its own. The slow ones, `--slow`, run on one task out of `--slow-every`. `paper:NAME` stands for models without their
step cost model. The program writes one line of JSON per task to `--out`, and prints every task on which a rival's plan
is cheaper by more than `TOLERANCE`, or has a plan where `neuroshard_plus` has none. At the end, it prints the
distribution of what the best rival costs relative to `neuroshard_plus`.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from random_tasks import random_task

from neuroshard_pipeline.cost_models.models import load_cost_models
from neuroshard_pipeline.errors import NeuroShardError
from neuroshard_pipeline.search.greedy_runs import compile_ahead
from neuroshard_pipeline.search.models import Models
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.sharders.base import SharderSettings
from neuroshard_pipeline.sharders.registry import solve_all
from neuroshard_pipeline.tables.task import ShardingTask

OURS = "neuroshard_plus"
CHEAP = ("random", "size_greedy", "dim_greedy", "lookup_greedy", "size_lookup_greedy", "embark", "neuroshard")
SLOW = ("torchrec", "torchrec_fitted", "milp")
_MILP_SECONDS = 1.0

#: Largest share by which a rival may be cheaper.
TOLERANCE = 0.001

#: Edges of the printed distribution of gains: the cost of the best rival relative to `neuroshard_plus`, minus 1.
_EDGES = (-np.inf, -TOLERANCE, 1e-6, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0, np.inf)


def solved(task: ShardingTask, models: Models, rivals: Sequence[str]) -> dict[str, Any]:
    """Costs in ms by sharder (None if it found no plan), and what is needed to understand them."""
    settings = SharderSettings()
    settings = replace(settings, rivals=settings.rivals.model_copy(update={"milp_time_limit_seconds": _MILP_SECONDS}))
    found = solve_all([task], [OURS, *rivals], models, settings)
    plans = {plan.sharder: plan for plan in found.plans}
    seconds = dict(zip(found.attempts["sharder"], found.attempts["seconds"].round(4), strict=True))
    return {
        "costs": {name: plans[name].predicted_cost_ms if name in plans else None for name in [OURS, *rivals]},
        "seconds": seconds,
        "types": {name: dict(_types(plan)) for name, plan in plans.items()},
    }


def _types(plan: Plan) -> Counter[str]:
    """Number of tables of every sharding type; a column-wise table with several shards is `cut`."""
    shards = Counter(shard.table.name for shard in plan.shards)
    types = {shard.table.name: shard.sharding_type for shard in plan.shards}
    return Counter("cut" if types[n] == "column_wise" and count > 1 else types[n] for n, count in shards.items())


def kind_of(task: ShardingTask) -> dict[str, Any]:
    """What distinguishes tasks in the listing."""
    poolings = Counter(table.pooling for table in task.tables)
    flags = {
        "constraints": bool(task.constraints),
        "host_memory": task.host_memory_bytes is not None,
        "pipelined": task.pipelines_input_dist,
        "tiers": task.tiers,
        "dedup": task.index_dedup,
        "half": task.comm_share < 1,
        "groups": task.num_replica_groups > 1,
        "uneven": not isinstance(task.memory_bytes, int),
        "modules": len({table.embedding_module for table in task.tables}) > 1,
    }
    return {
        "ranks": task.world_size,
        "hosts": task.num_hosts,
        "tables": len(task.tables),
        **poolings,
        "flags": [name for name, is_set in flags.items() if is_set],
    }


def lost_to(record: dict[str, Any]) -> tuple[str, float] | None:
    """The cheapest rival that beats `neuroshard_plus` by more than `TOLERANCE`, and by which factor; or None."""
    costs = {name: ms for name, ms in record["costs"].items() if ms is not None}
    ours = costs.pop(OURS, np.inf)
    if not costs:
        return None
    best = min(costs, key=lambda name: costs[name])
    return (best, ours / costs[best]) if ours > costs[best] * (1 + TOLERANCE) else None


def gain(record: dict[str, Any]) -> float:
    """Cost of the best rival relative to `neuroshard_plus`, minus 1; NaN if either found no plan."""
    costs = dict(record["costs"])
    ours = costs.pop(OURS)
    rivals = [ms for ms in costs.values() if ms is not None]
    return min(rivals) / ours - 1.0 if rivals and ours else np.nan


def listed(record: dict[str, Any]) -> str:
    """One line about a task on which a rival's plan is cheaper."""
    found = lost_to(record)
    assert found is not None
    name, factor = found
    types = record["types"]
    return (
        f"{record['task']} {record['models']} {factor:.4f} {name} {types[name]} against {types.get(OURS)} "
        f"{ {k: v for k, v in record['kind'].items() if v} }"
    )


def records(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Solve the tasks of the arguments one after another."""
    loaded = {}
    for name in arguments.models:
        models = load_cost_models(name.removeprefix("paper:"))
        loaded[Path(name).name] = replace(models, step=None) if name.startswith("paper:") else models
    names = list(loaded)
    for number in range(arguments.first, arguments.first + arguments.tasks):
        name = names[number % len(names)]
        task = random_task(arguments.seed, number)
        rivals = [*CHEAP, *(arguments.slow if number % arguments.slow_every == 0 else ())]
        kind = {"task": f"{arguments.seed}/{number}", "models": name, "kind": kind_of(task)}
        try:
            yield {**kind, **solved(task, loaded[name], rivals)}
        except NeuroShardError as error:
            print(kind, "refused:", error, file=sys.stderr)


def printed(found: Sequence[dict[str, Any]]) -> None:
    """Print losses, the distribution of gains and the mean seconds."""
    lost = [record for record in found if lost_to(record)]
    for record in sorted(lost, key=lambda each: -lost_to(each)[1]):
        print(listed(record))
    for name in sorted({record["models"] for record in found}):
        of = [record for record in found if record["models"] == name]
        gains = np.array([gain(record) for record in of])
        gains = gains[np.isfinite(gains)]
        counts = np.histogram(gains, _EDGES)[0]
        print(f"{name}: {len(of)} tasks, {len(gains)} with plans, {sum(r in lost for r in of)} lost; gains:", end=" ")
        print(", ".join(f"<{edge:g}: {count}" for edge, count in zip(_EDGES[1:], counts, strict=True)), end="; ")
        print(f"median {np.median(gains):.4f}, mean {gains.mean():.4f}") if len(gains) else print()
    for name in (OURS, *CHEAP, *SLOW):
        of = [record["seconds"][name] for record in found if name in record["seconds"]]
        print(f"{name}: {np.mean(of or [0]):.3f} s per task ({len(of)} tasks)", end="; ")
    print()


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="number of the first task")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--models", nargs="+", default=["h100"])
    parser.add_argument("--slow", nargs="*", default=SLOW, choices=SLOW)
    parser.add_argument("--slow-every", type=int, default=10)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--read", nargs="+", type=Path, help="print the results of these files")
    arguments = parser.parse_args()
    if arguments.read:
        printed([json.loads(line) for path in arguments.read for line in path.read_text().splitlines()])
        return
    compile_ahead()
    found, start = [], time.perf_counter()
    with open(arguments.out or os.devnull, "a", encoding="utf-8") as out:
        for record in records(arguments):
            found.append(record)
            out.write(json.dumps(record) + "\n")
            out.flush()
    printed(found)
    print(f"{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main()
