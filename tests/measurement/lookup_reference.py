"""The expected result of a fused lookup on any device, computed by torch's embedding bag in float64."""

from __future__ import annotations

from dataclasses import replace

import torch

from neuroshard_pipeline.measurement import lookup_bench
from neuroshard_pipeline.tables.ids import draw_ids
from neuroshard_pipeline.tables.profile import with_profile
from neuroshard_pipeline.tables.samples import ComputeSample
from neuroshard_pipeline.tables.table import Shard, Table, whole

SEED = 3
WIDE = Table("wide", 60, 16, 5.0)
SAMPLES = [
    ComputeSample("one table", 16, (whole(WIDE),)),
    ComputeSample("columns of one table", 16, (Shard(WIDE, 0, 4), Shard(WIDE, 4, 12))),
    ComputeSample("a table twice", 7, (whole(WIDE), whole(WIDE))),
    ComputeSample("mixed", 33, (whole(Table("a", 1000, 8, 0.4)), whole(Table("b", 3, 4, 9.0)), Shard(WIDE, 8, 8))),
]


def stored_as(sample, optimizer, data_type):
    """The sample with another optimizer and data type."""
    shards = [
        Shard(replace(shard.table, data_type=data_type), shard.column_offset, shard.embedding_dim)
        for shard in sample.shards
    ]
    return replace(sample, optimizer=optimizer, shards=tuple(shards))


def reference(sample, weights):
    """Output and updated weights in float64, from torch's embedding bag and the textbook formulas of the optimizers."""
    outputs, updated = [], []
    for shard, weight in zip(sample.shards, weights, strict=True):
        ids = draw_ids(with_profile(shard.table, sample.batch_size), sample.batch_size, SEED)
        indices, offsets = torch.from_numpy(ids.indices), torch.from_numpy(ids.offsets)
        double = weight.double().requires_grad_()
        output = torch.nn.functional.embedding_bag(indices, double, offsets, mode="sum", include_last_offset=True)
        output.sum().backward()
        step = double.grad
        if sample.optimizer == "rowwise_adagrad":
            state = step.square().mean(dim=1, keepdim=True)
            step = step / (state.sqrt() + 1e-8)
        outputs.append(output.detach())
        updated.append((double - lookup_bench.LEARNING_RATE * step).detach())
    return torch.cat(outputs, dim=1), updated


def random_weights(sample):
    """Random weights on the CPU, one tensor per shard."""
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(shard.table.num_embeddings, shard.embedding_dim, generator=generator) for shard in sample.shards
    ]
