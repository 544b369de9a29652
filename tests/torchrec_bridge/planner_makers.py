"""Small collections on the meta device, a topology, and planners for them."""

from __future__ import annotations

import torch
from search.small_models import small_models
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
from torchrec.distributed.planner import Topology

from neuroshard_pipeline.torchrec_bridge import NeuroShardPlanner, PlannerOptions

META = torch.device("meta")


def topology(world_size: int = 4, device: str = "cuda") -> Topology:
    return Topology(world_size, device, hbm_cap=2**24, ddr_cap=2**24, local_world_size=2, created_by_factory=True)


def collection(*tables: EmbeddingBagConfig) -> torch.nn.ModuleDict:
    tables = tables or (bag("a"), bag("b"))
    return torch.nn.ModuleDict({"ebc": EmbeddingBagCollection(tables=list(tables), device=META)})


def bag(name: str, **changes) -> EmbeddingBagConfig:
    values = {"num_embeddings": 1000, "embedding_dim": 64, "feature_names": [f"f_{name}"]}
    return EmbeddingBagConfig(name=name, **(values | changes))


def make(constraints=None, **options) -> NeuroShardPlanner:
    options = PlannerOptions(**{"sharder": "neuroshard"} | options)
    return NeuroShardPlanner(small_models(), topology(), 8, constraints, optimizer="sgd", options=options)
