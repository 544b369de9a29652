r"""Compares sharders on full-scale tasks by the whole step, which the lab models for H100s with explicit formulas.

    OMP_NUM_THREADS=1 python benchmarks/search/bench_whole_cost.py --world-sizes 8 16 --tasks 6 --results whole_cost.csv
    OMP_NUM_THREADS=1 python benchmarks/search/bench_whole_cost.py --world-sizes 128 --tasks 2 --suites mlperf tiny
    OMP_NUM_THREADS=1 python benchmarks/search/bench_whole_cost.py --results whole_cost.csv --world-sizes  # report only

Sharders see the shipped cost models for the H100. Their plans are judged without these models, by `lab.step`. A sharder
may use all sharding types that it knows; `neuroshard_plus/columns` may only cut columns. `torchrec_tuned`
(`tuned_torchrec.py`) is another name that `--sharders` takes. Prints, per suite and number of ranks: numbers of tasks
solved, mean step times and seconds; the ratio of the mean of `neuroshard_plus` to that of every other sharder, on the
tasks that both solved, with a 95 % bootstrap interval; errors; the mean parts of a step; and, per sharding type, its
shares of tables, columns and ids, and medians over plans of a plan's median ids per sample, width, and rows divided by
the samples of a rank. A sharder does not solve a task again if the file has its result.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import tuned_torchrec
from whole_cost_tasks import SUITES, suite_tasks

from neuroshard_pipeline.cost_models.models import load_cost_models
from neuroshard_pipeline.errors import DoesNotFitError, NeuroShardError
from neuroshard_pipeline.evaluation.comparison import Bootstrap
from neuroshard_pipeline.lab.device import modelled_device
from neuroshard_pipeline.lab.network_presets import network_preset
from neuroshard_pipeline.lab.step import StepCost, step_cost_ms
from neuroshard_pipeline.search.models import Models
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.sharders.registry import shard
from neuroshard_pipeline.tables.constraints import Constraints
from neuroshard_pipeline.tables.task import ShardingTask

OURS, COLUMNS = "neuroshard_plus", "columns"
SHARDERS = (OURS, f"{OURS}/{COLUMNS}", "torchrec", "embark", "size_lookup_greedy", "lookup_greedy")
DEVICE, NETWORK = modelled_device("h100"), network_preset("h100-ib400")
BOOTSTRAP = Bootstrap(confidence=0.95, resamples=10_000, seed=0)
PARTS = [field.removesuffix("_ms") for field in StepCost.__dataclass_fields__]


def solve(task: ShardingTask, name: str, models: Models) -> list[dict[str, object]]:
    """The judged plan of one sharder, one record per sharding type of the plan; or one record with an error."""
    record: dict[str, object] = {"suite": task.task_id.split("-")[0], "world_size": task.world_size}
    record |= {"task": task.task_id, "local_batch": task.batch_size // task.world_size, "sharder": name}
    sharder, _, limited = name.partition("/")
    asked = replace(task, constraints=Constraints(sharding_types=("column_wise",))) if limited == COLUMNS else task
    start = time.perf_counter()
    try:
        if sharder == tuned_torchrec.NAME:
            plan = tuned_torchrec.tuned_plan(task, models)
        else:
            plan = shard(asked, models, sharder)
    except (DoesNotFitError, NeuroShardError) as error:
        return [record | {"error": str(error), "seconds": time.perf_counter() - start}]
    cost = step_cost_ms(task, plan.shards, plan.ranks, DEVICE, NETWORK)
    record |= {"seconds": time.perf_counter() - start, "predicted_ms": plan.predicted_cost_ms, "step_ms": cost.step_ms}
    record |= {part: float(getattr(cost, f"{part}_ms").mean()) for part in PARTS}
    return [record | of_type for of_type in types_of(plan)]


def types_of(plan: Plan) -> list[dict[str, object]]:
    """Per sharding type of the plan: number of tables, sums of columns and ids per sample, medians, and most rows."""
    kinds = {shard.table.name: shard.sharding_type for shard in plan.shards}
    records = []
    for kind in sorted(set(kinds.values())):
        tables = [table for table in plan.task.tables if kinds[table.name] == kind]
        rows = [table.num_embeddings / (plan.task.batch_size / plan.task.world_size) for table in tables]
        records.append(
            {
                "type": kind,
                "tables": len(tables),
                "columns": sum(table.embedding_dim for table in tables),
                "ids": sum(table.pooling_factor for table in tables),
                "rows_per_local_sample": float(np.median(rows)),
                "most_rows_per_local_sample": max(rows),
                "median_ids": float(np.median([table.pooling_factor for table in tables])),
                "median_width": float(np.median([table.embedding_dim for table in tables])),
            }
        )
    return records


def report(results: pd.DataFrame, sharders: Sequence[str]) -> None:
    """Print all tables."""
    if "step_ms" not in results:
        raise SystemExit("no sharder has solved a task; the file of results names the reasons")
    plans = results.drop_duplicates(["task", "sharder"])
    for (suite, world_size), group in plans.groupby(["suite", "world_size"], sort=False):
        steps = group.pivot_table("step_ms", "task", "sharder", aggfunc="first", dropna=False)
        print(f"\n{suite}, {int(world_size)} ranks, {len(steps)} tasks")
        print("  sharder                     solved  mean step ms  neuroshard_plus / sharder     seconds")
        for name in [name for name in sharders if name in steps]:
            solved = steps[name].notna()
            both = steps.dropna(subset=[name, OURS]) if OURS in steps else steps.iloc[:0]
            seconds = group.loc[group["sharder"] == name, "seconds"].mean()
            line = f"  {name:27s} {solved.sum():3d}/{len(solved):<3d} {steps[name].mean():10.3f}"
            if len(both) and name != OURS:
                ratio = BOOTSTRAP.ratio_of_means(both[OURS].to_numpy(), both[name].to_numpy())
                line += f"      {ratio.value:6.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"
            print(f"{line:70s} {seconds:8.1f}")
        errors = group["error"].dropna() if "error" in group else pd.Series(dtype=str)
        for text, times in errors.str.slice(0, 150).value_counts().items():
            print(f"  {times} x {text}")
        if group["step_ms"].isna().all():
            continue
        parts = group.dropna(subset=["step_ms"]).groupby("sharder", sort=False)[PARTS].mean()
        print(parts.to_string(float_format="{:.3f}".format))
        kinds = results[(results["suite"] == suite) & (results["world_size"] == world_size)].dropna(subset=["type"])
        sums = kinds.groupby(["sharder", "type"], sort=False)[["tables", "columns", "ids"]].sum()
        shares = sums / sums.groupby(level=0).transform("sum")
        columns = ["rows_per_local_sample", "most_rows_per_local_sample", "median_ids", "median_width"]
        medians = kinds.groupby(["sharder", "type"], sort=False)[columns].median()
        print(shares.join(medians).to_string(float_format="{:.3g}".format))


def main() -> None:
    """Solve what is missing, and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--world-sizes", type=int, nargs="*", default=[8, 16])
    parser.add_argument("--tasks", type=int, default=6, help="tasks per suite and number of ranks")
    parser.add_argument("--suites", nargs="+", choices=list(SUITES), default=list(SUITES))
    parser.add_argument("--sharders", nargs="+", default=list(SHARDERS))
    parser.add_argument("--results", type=Path, default=Path("whole_cost.csv"), help="file that keeps results")
    arguments = parser.parse_args()
    results = (
        pd.read_csv(arguments.results) if arguments.results.exists() else pd.DataFrame(columns=["task", "sharder"])
    )
    known = set(zip(results["task"], results["sharder"], strict=True))
    models = load_cost_models("h100")
    for world_size in arguments.world_sizes:
        for suite in arguments.suites:
            for task in suite_tasks(suite, world_size, arguments.tasks):
                for name in arguments.sharders:
                    if (task.task_id, name) in known:
                        continue
                    found = solve(task, name, models)
                    print(f"{task.task_id} {name} {found[0].get('step_ms', 'failed')}", flush=True)
                    results = pd.concat([results, pd.DataFrame(found)], ignore_index=True)
                    results.to_csv(arguments.results, index=False)
    report(results, arguments.sharders)


if __name__ == "__main__":
    main()
