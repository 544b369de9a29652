r"""How much of the gain do half of the moved bytes keep, and how long does `replan` take?

    OMP_NUM_THREADS=1 python benchmarks/replan/bench_replan.py changes    # 50 changes, 10 s each
    OMP_NUM_THREADS=1 python benchmarks/replan/bench_replan.py large      # 1,000 tables on 128 ranks

`changes` draws a task of 20 to 60 tables on 8 or 16 ranks, plans it, and then changes it: tables are added, tables
grow, the ranks double, pooling factors change, or the present plan is that of another sharder. It prints the predicted
steps of the choices, and the share of the gain of the free choice that is left if no rank moves more than half of its
bytes. It marks a free choice that is dearer than a plan from nothing. Costs are those of the shipped (modelled) H100.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from dataclasses import replace

import numpy as np

import neuroshard_pipeline as ns
from neuroshard_pipeline.search.greedy_runs import compile_ahead
from neuroshard_pipeline.tables.profile import with_profile

KINDS = ("added", "grown", "doubled", "popularity", "rival")
LOCAL_BATCH = 1024


def drawn_table(
    number: int, world_size: int, rng: np.random.Generator, log_rows: tuple[float, float] = (3, 7.3)
) -> ns.Table:
    """A table whose rows, columns and pooling factor are drawn."""
    rows, columns = int(10 ** rng.uniform(*log_rows)), int(rng.choice([16, 32, 64, 128]))
    table = ns.Table(f"t{number}", rows, columns, float(rng.choice([1, 1, 2, 5, 20])))
    return with_profile(table, world_size * LOCAL_BATCH)


def drawn_task(num_tables: int, world_size: int, rng: np.random.Generator) -> ns.ShardingTask:
    """A task whose tables are drawn, on hosts of 8 ranks with 40 GiB each."""
    tables = [drawn_table(number, world_size, rng) for number in range(num_tables)]
    batch = world_size * LOCAL_BATCH
    return ns.ShardingTask(tables, world_size, batch, 40 * 2**30, "rowwise_adagrad", local_world_size=8)


def changed(task: ns.ShardingTask, kind: str, rng: np.random.Generator) -> ns.ShardingTask:
    """The task after a change of this kind."""
    tables, world = list(task.tables), task.world_size
    if kind == "added":
        tables += [drawn_table(len(tables) + more, world, rng) for more in range(len(tables) // 8 + 1)]
    if kind == "grown":
        tables = [replace(t, num_embeddings=int(t.num_embeddings * rng.choice([1, 1, 1, 4, 16]))) for t in tables]
    if kind == "popularity":
        factors = [t.pooling_factor * float(rng.choice([0.5, 1, 2])) for t in tables]
        bare = [
            replace(t, pooling_factor=f, unique_rows=None, reuse=None) for t, f in zip(tables, factors, strict=True)
        ]
        tables = [with_profile(table, task.batch_size) for table in bare]
    return replace(task, tables=tables, world_size=2 * world if kind == "doubled" else world)


def one_change(seed: int, models: ns.CostModels) -> float | None:
    """Print the choices after one change; returns the share of the gain with half of the bytes."""
    rng, kind = np.random.default_rng(seed), KINDS[seed % len(KINDS)]
    task = drawn_task(int(rng.integers(20, 60)), int(rng.choice([8, 16])), rng)
    present = ns.shard(task, models)
    now = changed(task, kind, rng)
    if kind == "rival":
        present = ns.shard(task, models, str(rng.choice(["size_greedy", "dim_greedy", "random", "torchrec"])))
    start = time.process_time()
    found = ns.replan(present, now, models)
    seconds, fresh_ms = time.process_time() - start, ns.shard(now, models).predicted_cost_ms
    costs = {choice: choice.plan.predicted_cost_ms for choice in found.choices}
    keep, free = found.choices[0], found.free
    if keep.name != "keep":
        print(f"{seed:3} {kind:10} nothing can be kept", flush=True)
        return None
    limit = max(free.move.rank_bytes / 2, keep.move.rank_bytes)
    half_ms = min(ms for choice, ms in costs.items() if choice.move.rank_bytes <= limit + 1)
    gain_ms = costs[keep] - costs[free]
    share = (costs[keep] - half_ms) / gain_ms if gain_ms > 1e-9 else 1.0
    print(
        f"{seed:3} {kind:10} {len(now.tables):3} tables {now.world_size:3} ranks  keep {costs[keep]:.4f}  half "
        f"{half_ms:.4f}  free {costs[free]:.4f}  nothing {fresh_ms:.4f} ms  share {share:.2f}  "
        f"{free.move.rank_bytes / 2**30:.2f} GiB per rank  {seconds:.1f} s CPU"
        f"{'  DEARER' if costs[free] > fresh_ms * (1 + 1e-9) else ''}",
        flush=True,
    )
    return share


def large(models: ns.CostModels) -> None:
    """Print seconds and choices for 1,000 tables on 128 ranks, of which 20 are new."""
    rng = np.random.default_rng(0)
    task = drawn_task(980, 128, rng)
    present = ns.shard(task, models)
    now = replace(task, tables=[*task.tables, *(drawn_table(1000 + more, 128, rng) for more in range(20))])
    start, cpu = time.perf_counter(), time.process_time()
    fresh = ns.shard(now, models)
    print(f"from nothing {time.perf_counter() - start:.1f} s, {fresh.predicted_cost_ms:.4f} ms")
    start, cpu = time.perf_counter(), time.process_time()
    found = ns.replan(present, now, models)
    print(f"replan {time.perf_counter() - start:.1f} s ({time.process_time() - cpu:.1f} s CPU)")
    for choice in found.choices:
        types = Counter({shard.table.name: shard.sharding_type for shard in choice.plan.shards}.values())
        print(
            f"{choice.name:30} {choice.plan.predicted_cost_ms:.4f} ms {choice.move.rank_bytes / 2**30:.3f} GiB {types}"
        )


def main() -> None:
    """Run one of the two parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("changes", "large"))
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--last", type=int, default=50)
    parser.add_argument("--device", default="h100")
    arguments = parser.parse_args()
    compile_ahead()
    models = ns.load_cost_models(arguments.device)
    if arguments.part == "large":
        large(models)
        return
    shares = [one_change(seed, models) for seed in range(arguments.first, arguments.last)]
    known = [share for share in shares if share is not None]
    print(f"median share of the gain with half of the bytes: {np.median(known):.2f} ({len(known)} changes)")


if __name__ == "__main__":
    main()
