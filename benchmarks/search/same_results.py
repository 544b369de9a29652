"""Checks that a change of the code leaves predictions and plans equal to the last bit.

    make same-results BEFORE=<commit>     # records <commit> and this tree, and compares the records

or step by step; each `record` runs the version of the package on PYTHONPATH:

    python benchmarks/search/same_results.py record before.json
    python benchmarks/search/same_results.py record after.json
    python benchmarks/search/same_results.py compare before.json after.json

It records the predictions of the newest stored cost models for 1,000 shard sets and 300 collectives, and the plans of
every sharder for 40 seeded sharding tasks (`milp` only for those with at most 16 tables). It uses the public Python
API and draws its inputs itself, so that it runs with any version of the package. `autoshard` and `dreamshard` are
included if their policies were trained.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import neuroshard_pipeline as ns

NUM_SHARD_SETS, NUM_COLLECTIVES, NUM_TASKS = 1000, 300, 40
WIDTHS = (4, 8, 16, 32, 64, 128)
BATCH_SIZES = (64, 128, 512, 1024)
OPTIMIZERS = ("sgd", "rowwise_adagrad")
#: The mixed-integer program stops at a time limit on larger tasks, so that its plan depends on the machine.
MOST_TABLES_OF_MILP = 16


def main() -> int:
    """Record the results of this version of the package, or compare two records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    record = commands.add_parser("record")
    record.add_argument("output", type=Path)
    record.add_argument("--models", type=Path, default=Path("data/06_models"))
    compare = commands.add_parser("compare")
    compare.add_argument("before", type=Path)
    compare.add_argument("after", type=Path)
    given = parser.parse_args()
    if given.command == "compare":
        return compare_records(json.loads(given.before.read_text()), json.loads(given.after.read_text()))
    given.output.write_text(json.dumps(results_of(given.models), indent=0))
    return 0


def results_of(folder: Path) -> dict[str, Any]:
    """All results by name; floats keep every bit, because JSON writes their shortest exact form."""
    models = ns.load_cost_models(folder)
    results = {f"shard set {index}": compute_costs(models, index) for index in range(NUM_SHARD_SETS)}
    results |= {f"collective {index}": comm_costs(models, index) for index in range(NUM_COLLECTIVES)}
    for index in range(NUM_TASKS):
        print(f"task {index + 1} of {NUM_TASKS}", file=sys.stderr)
        task = draw_task(index)
        results |= {f"plan {index} {name}": plan for name, plan in plans(task, models, policies_in(folder))}
    return results


def compute_costs(models: ns.CostModels, index: int) -> dict[str, Any]:
    """Predicted compute cost of one drawn shard set, with its interval."""
    rng = np.random.default_rng([1, index])
    tables = draw_tables(rng, int(rng.integers(1, 16)))
    shards = [ns.Shard(table, 0, int(rng.choice([w for w in WIDTHS if w <= table.embedding_dim]))) for table in tables]
    batch_size, optimizer = int(rng.choice(BATCH_SIZES)), str(rng.choice(OPTIMIZERS))
    return {
        "ms": models.compute_ms(shards, batch_size, optimizer),
        "interval_ms": models.compute.interval([shards], batch_size, optimizer)[0].tolist(),
    }


def comm_costs(models: ns.CostModels, index: int) -> dict[str, Any]:
    """Predicted costs of one drawn collective, rank by rank."""
    rng = np.random.default_rng([2, index])
    world_size = int(rng.choice([2, 4, 8, 12, 16]))
    dim_sums = rng.integers(0, 400, size=world_size) * 4
    start_skew_ms = rng.uniform(0.0, 5.0, size=world_size).round(3)
    forward_ms, backward_ms = models.comm_ms(
        dim_sums, start_skew_ms - start_skew_ms.min(), int(rng.choice(BATCH_SIZES))
    )
    return {"forward_ms": forward_ms.tolist(), "backward_ms": backward_ms.tolist()}


def draw_tables(rng: np.random.Generator, count: int) -> list[ns.Table]:
    """Tables of many sizes without a reuse profile, some in half precision."""
    return [
        ns.Table(
            name=f"table_{index}",
            num_embeddings=int(10 ** rng.uniform(0.5, 5.5)),
            embedding_dim=int(rng.choice(WIDTHS)),
            pooling_factor=float(np.round(10 ** rng.uniform(0.0, 1.7), 2)) if rng.random() < 0.6 else 1.0,
            data_type="fp16" if rng.random() < 0.2 else "fp32",
        )
        for index in range(count)
    ]


def draw_task(index: int) -> ns.ShardingTask:
    """4 to 60 tables on 2, 4 or 8 ranks; every third task is tight in memory, every fifth has constraints."""
    rng = np.random.default_rng([3, index])
    world_size = (2, 4, 8)[index % 3]
    tables = draw_tables(rng, int(rng.integers(4, 16)) * world_size // 2)
    sizes = [table.weight_bytes + 4 * table.num_embeddings for table in tables]
    memory_bytes = sum(sizes) / world_size / 0.9 if index % 3 == 1 else max(sum(sizes) / world_size, max(sizes)) / 0.6
    names = [table.name for table in tables]
    constraints = ns.Constraints()
    if index % 5 == 4:
        own = (ns.TableConstraint(names[0], ranks=(0, 1)), ns.TableConstraint(names[1], split=False))
        constraints = ns.Constraints(tables=own, together=((names[2], names[3]),))
    return ns.ShardingTask(
        tables,
        world_size=world_size,
        batch_size=int(rng.choice(BATCH_SIZES)),
        memory_bytes=int(memory_bytes),
        optimizer=OPTIMIZERS[index % 2],
        task_id=f"same-results-{index}",
        constraints=constraints,
    )


def plans(task: ns.ShardingTask, models: ns.CostModels, policies: Any) -> Iterator[tuple[str, Any]]:
    """(name, result) of every sharder, but `milp` for small tasks only; a result has shards and costs, or an error."""
    for name in ns.SHARDERS:
        if name == "milp" and len(task.tables) > MOST_TABLES_OF_MILP:
            continue
        try:
            plan = ns.shard(task, models, sharder=name, **policies)
        except ns.NeuroShardError as error:
            yield name, {"error": type(error).__name__}
            continue
        frame = plan.to_frame()[["table", "column_offset", "embedding_dim", "rank"]]
        yield name, {"shards": frame.to_numpy().tolist(), "ms": plan.predicted_cost_ms, "interval_ms": plan.interval_ms}


def policies_in(folder: Path) -> dict[str, Any]:
    """The trained policies as an argument of `ns.shard`; empty if there are none."""
    load: Callable[[Path], Any] = ns.load_policies
    return {"policies": load(folder)} if (folder / "dreamshard_policy").is_dir() else {}


def compare_records(before: dict[str, Any], after: dict[str, Any]) -> int:
    """Print the differences by kind of result, and return 1 if there are any."""
    different = [name for name in before.keys() | after.keys() if before.get(name) != after.get(name)]
    for kind in ("shard set", "collective", "plan"):
        names = [name for name in before if name.startswith(kind)]
        changed = sorted(name for name in different if name.startswith(kind))
        print(f"{kind}: {len(names) - len(set(changed) & set(names))} of {len(names)} equal to the last bit")
        for name in changed[:20]:
            print(f"  {name}: {short(before.get(name))} -> {short(after.get(name))}")
    return 1 if different else 0


def short(result: Any) -> str:
    """One line of a result."""
    text = json.dumps(result)
    return text if len(text) < 200 else f"{text[:100]} ... {text[-90:]}"


if __name__ == "__main__":
    sys.exit(main())
