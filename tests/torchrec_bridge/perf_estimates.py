"""Tables, topologies and cost models for tests of the estimates that TorchRec's planner makes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from search.small_models import SmallModels, small_models
from torchrec import EmbeddingBagCollection
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import ParameterConstraints, Topology
from torchrec.distributed.planner.enumerators import EmbeddingEnumerator

from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.torchrec_plan.modules import embedding_bag_config

BATCH = 64
ROWS = {"a": 1000, "b": 50_000, "c": 200_000, "d": 300}
WIDTHS = {"a": 16, "b": 64, "c": 128, "d": 64}
POOLING = {"a": 40.0, "b": 2.0, "c": 10.0, "d": 25.0}
TYPES = ["table_wise", "column_wise", "row_wise", "table_row_wise", "data_parallel", "table_column_wise", "grid_shard"]


def topology(world_size: int = 4, local_world_size: int = 2, **bandwidths: float) -> Topology:
    return Topology(
        world_size,
        "cuda",
        hbm_cap=2**30,
        ddr_cap=2**30,
        local_world_size=local_world_size,
        created_by_factory=True,
        **bandwidths,
    )


def tables() -> list[Table]:
    return [Table(name, ROWS[name], WIDTHS[name], POOLING[name]) for name in ROWS]


def module(chosen: list[Table] | None = None) -> EmbeddingBagCollection:
    bags = [embedding_bag_config(table.name, table) for table in chosen or tables()]
    return EmbeddingBagCollection(tables=bags, device=torch.device("meta"))


def constraints(sharding_types: list[str]) -> dict[str, ParameterConstraints]:
    return {
        name: ParameterConstraints(sharding_types=sharding_types, min_partition=32, pooling_factors=[POOLING[name]])
        for name in ROWS
    }


@dataclass(frozen=True)
class Scaled:
    """A part of cost models, `factor` times as expensive."""

    part: object
    factor: float

    def __getattr__(self, name):
        method = getattr(self.part, name)
        if name == "shard_embeddings":
            return method
        return lambda *arguments: self.factor * method(*arguments)


def scaled_models(compute: float, comm: float) -> SmallModels:
    models = small_models()
    return SmallModels(Scaled(models.compute, compute), Scaled(models.comm, comm))


def perfs(config, sharding_types=("table_wise", "column_wise"), on: Topology | None = None):
    """TorchRec's estimates: table, sharding type and kernel of each sharding option → size and `Perf` of its shards."""
    on, limits = on or topology(), constraints(list(sharding_types))
    enumerator = EmbeddingEnumerator(on, BATCH, limits, estimator=config.estimator(on, limits))
    options = enumerator.enumerate(module(), [EmbeddingBagCollectionSharder()])
    return {
        (option.name, option.sharding_type, option.compute_kernel): [
            (shard.size, shard.perf) for shard in option.shards
        ]
        for option in options
    }
