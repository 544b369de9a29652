"""The one thing that a plan may hold and TorchRec may not: shards of unequal widths of one table on one rank."""

from __future__ import annotations

import dataclasses
from collections import defaultdict

from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.tables.table import Shard, Table


def joined_for_torchrec(plan: Plan) -> Plan:
    """`plan` itself, or one like it in which a table's shards on one rank are equally wide.

    TorchRec 1.8 takes the width of a table's first shard on a rank for the width of all of its shards there
    (`batched_embedding_kernel._gen_named_parameters_by_table_fused`): with others, `DistributedModelParallel` fails
    or lets an `init_fn` write into other tables. Such shards become one, as wide as they are together; where they
    are not neighbours, the table's columns are dealt out anew, as which columns a rank holds makes no difference to
    its cost. Ranks, dimension sums and all other tables stay, no rank needs more memory, and the predicted cost is
    kept, although one lookup is cheaper than several.
    """
    placed: dict[Table, list[tuple[Shard, int]]] = defaultdict(list)
    for shard, rank in zip(plan.shards, plan.ranks, strict=True):
        placed[shard.table].append((shard, rank))
    if all(_torchrec_holds(shards) for shards in placed.values()):
        return plan
    new: list[tuple[Shard, int]] = []
    for table, shards in placed.items():
        new += shards if _torchrec_holds(shards) else _joined(table, shards)
    return dataclasses.replace(plan, shards=tuple(shard for shard, _ in new), ranks=tuple(rank for _, rank in new))


def _torchrec_holds(placed: list[tuple[Shard, int]]) -> bool:
    """Whether every rank's shards of this table are equally wide."""
    widths: dict[int, set[int]] = defaultdict(set)
    for shard, rank in placed:
        widths[rank].add(shard.embedding_dim)
    return all(len(of_rank) == 1 for of_rank in widths.values())


def _joined(table: Table, placed: list[tuple[Shard, int]]) -> list[tuple[Shard, int]]:
    """One shard on each rank that has any, in the order of their first columns."""
    total: dict[int, int] = defaultdict(int)
    for shard, rank in sorted(placed, key=lambda entry: entry[0].column_offset):
        total[rank] += shard.embedding_dim
    shards, at = [], 0
    for rank, width in total.items():
        shards.append((Shard(table, at, width), rank))
        at += width
    return shards
