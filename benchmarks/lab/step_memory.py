"""Compares the counted memory of a step (`evaluation/peak_memory.py`) with what TorchRec allocates on CPUs.

    python benchmarks/lab/step_memory.py              # 20 s on one core; needs the extra torchrec
    python benchmarks/lab/step_memory.py --list mixed # also the tensors that are alive at the peak, by operator

Two gloo ranks run steps of TorchRec's embedding modules under plans of all sharding types. PyTorch's profiler notes
every allocation and its address, from the creation of the modules on. Before the last step, Python's garbage collector
runs: TorchRec's requests are in reference cycles, so that tensors of earlier steps live until then. gloo copies the
buffers of its reductions, which NCCL does not; `gloo` is the memory of these copies at the peak, and is subtracted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import pandas as pd
from step_memory_ranks import BATCH, PARAMS, WORLD, set_up

import neuroshard_pipeline as ns
from neuroshard_pipeline.evaluation.peak_memory import peak_memory
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.tables.row_blocks import row_shards
from neuroshard_pipeline.tables.table import Shard, Table, whole
from neuroshard_pipeline.torchrec_bridge.ranks import rank_team

POOLED = [Table(f"pooled_{at}", 500 + 100 * at, 64, 10.0) for at in range(4)]
SEQUENCES = [Table(f"sequence_{at}", 500 + 100 * at, 64, 10.0, pooling="none") for at in range(4)]
#: Optimizer, tables, and the sharding type of each table in turn.
CASES: dict[str, tuple[str, list[Table], tuple[str, ...]]] = {
    "column_wise": ("rowwise_adagrad", POOLED, ("column_wise",)),
    "halves": ("sgd", POOLED, ("halves",)),
    "row_wise": ("sgd", POOLED, ("row_wise",)),
    "data_parallel": ("sgd", POOLED, ("data_parallel",)),
    "mixed": ("sgd", POOLED, ("column_wise", "row_wise", "data_parallel")),
    "sequences, column_wise": ("rowwise_adagrad", SEQUENCES, ("column_wise",)),
    "sequences, row_wise": ("sgd", SEQUENCES, ("row_wise",)),
    "pooled and sequences": ("rowwise_adagrad", [*POOLED, *SEQUENCES], ("column_wise", "row_wise")),
    "large tables": ("rowwise_adagrad", [Table("large", 400_000, 32, 4.0), *POOLED], ("row_wise", "column_wise")),
}


def plan_of(name: str) -> Plan:
    """The plan of a case."""
    optimizer, tables, types = CASES[name]
    placed = [pair for at, table in enumerate(tables) for pair in _placed(table, types[at % len(types)], at)]
    shards, ranks = zip(*placed, strict=True)
    task = ns.ShardingTask(tables, WORLD, BATCH, 2**40, optimizer=optimizer, task_id=name)
    return Plan(task, shards, ranks, "made by hand", compute_device="cpu")


def _placed(table: Table, sharding_type: str, at: int) -> Iterator[tuple[Shard, int]]:
    if sharding_type == "row_wise":
        yield from zip(row_shards(table, "row_wise", WORLD), range(WORLD), strict=True)
    elif sharding_type == "data_parallel":
        yield from ((whole(table, "data_parallel"), rank) for rank in range(WORLD))
    elif sharding_type == "halves":
        half = table.embedding_dim // 2
        yield from ((Shard(table, half * rank, half), rank) for rank in range(WORLD))
    else:
        yield whole(table), at % WORLD


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", default="", help="case whose tensors are listed")
    parser.add_argument("--only", nargs="+", default=list(CASES))
    arguments = parser.parse_args()
    rows = []
    with rank_team(WORLD, set_up, (), PARAMS) as team:
        for name in arguments.only:
            plan = plan_of(name)
            counted = peak_memory(plan)
            for rank, alive in enumerate(team.ask(plan, PARAMS.timeout_s)):
                copies = sum(size for size, where in alive if "c10d::_" in where)
                allocated, ours = sum(size for size, _ in alive) - copies, float(counted.allocated[rank])
                rows.append((name, rank, allocated / 1e6, ours / 1e6, ours / allocated, copies / 1e6))
                if name == arguments.list and rank == 0:
                    print({part: value[0] / 1e6 for part, value in vars(counted).items()})
                    print("\n".join(f"{size:>12,} {where[-150:]}" for size, where in sorted(alive)[-40:]))
    columns = ["plan", "rank", "allocated MB", "counted MB", "counted / allocated", "gloo MB"]
    print(pd.DataFrame(rows, columns=columns).to_string(index=False, float_format="{:.3f}".format))


if __name__ == "__main__":
    main()
