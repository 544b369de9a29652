"""These functions derive from the ids of the last step what the ranks exchange for tables with tiers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torchrec_bridge.tiered_sequences import (
    SAMPLES_PER_RANK,
    SEQUENCES,
    STEPS,
    Case,
    TieredModel,
    drawn_ids,
    plan_of,
    popular_rows,
)

from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.tables.tiers import Cuts


def asked_rows(case: Case, world_size: int) -> np.ndarray:
    """For every rank, how many host rows it asks each rank of its host for in the last step: (ranks, ranks per host).

    Every distinct id counts once if `case.index_dedup`, else every id.
    """
    size = case.ranks_per_host
    place = [(name, int(row)) for name, (_, _, cuts) in SEQUENCES.items() for row in _host_rows(name, cuts)]
    owner = {key: number % size for number, key in enumerate(place)}
    counts = np.zeros((world_size, size), dtype=int)
    for rank in range(world_size):
        part = slice(rank * SAMPLES_PER_RANK, (rank + 1) * SAMPLES_PER_RANK)
        ids, _ = drawn_ids(STEPS - 1, SAMPLES_PER_RANK * world_size, part)
        asked = [
            (table, row)
            for table, (_, names, _) in SEQUENCES.items()
            for name in names
            for row in ids[name].values().tolist()
        ]
        for key in set(asked) if case.index_dedup else asked:
            if key in owner:
                counts[rank, owner[key]] += 1
    return counts


def _host_rows(name: str, cuts: Cuts) -> list[int]:
    return popular_rows(name)[cuts.hot_rows : cuts.hot_rows + cuts.host_rows].tolist()


def exchanged_plan(case: Case, world_size: int) -> Plan:
    """The plan of a case; the pooling factors of its tables are those of the batch of the last step."""
    plan = plan_of(TieredModel(), case, world_size)
    samples = SAMPLES_PER_RANK * world_size
    ids, _ = drawn_ids(STEPS - 1, samples, slice(0, samples))
    counts = {"p": samples}
    for table, (_, names, cuts) in SEQUENCES.items():
        order = popular_rows(table)[: cuts.hot_rows + cuts.host_rows]
        found = torch.cat([ids[name].values() for name in names])
        counts |= {
            f"{table}/hot": torch.isin(found, order[: cuts.hot_rows]).sum().item(),
            f"{table}/host": torch.isin(found, order[cuts.hot_rows :]).sum().item(),
        }
        counts[f"{table}/cold" if cuts else table] = (~torch.isin(found, order)).sum().item()
    tables = {
        each.name: replace(each, pooling_factor=max(counts[each.name] / samples, 1e-9)) for each in plan.task.tables
    }
    shards = tuple(replace(shard, table=tables[shard.table.name]) for shard in plan.shards)
    return Plan(replace(plan.task, tables=tuple(tables.values())), shards, plan.ranks, "counted")
