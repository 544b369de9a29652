"""What the ranks of test_running.py do."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torchrec.distributed import DistributedModelParallel
from torchrec_bridge.planner_makers import bag, collection, make, topology

import neuroshard_pipeline as ns
from neuroshard_pipeline.torchrec_bridge.running import read_plan


def placed(present):
    return {
        (s.table.name, s.column_offset, s.embedding_dim, s.row_offset, s.num_rows, s.sharding_type, rank)
        for s, rank in zip(present.shards, present.ranks, strict=True)
    }


def read_sharded(_, world_size):
    model = collection(bag("a"), bag("b"))
    planner = make()
    planner.topology = topology(world_size, "cpu")
    task = planner.task(model)
    found = planner.search(model)
    sharded = DistributedModelParallel(
        model, device=torch.device("cpu"), plan=found.to_torchrec(model, world_size, "cpu"), init_data_parallel=False
    )
    present = read_plan(sharded, replace(task, tables=task.tables[:1]))
    sharded.plan.plan.clear()
    with pytest.raises(ns.NeuroShardError, match="the embedding modules 'ebc' have no plan"):
        read_plan(sharded, task)
    return placed(present) == placed(read_plan(found, task)), present.world_size
