"""Plans of any sharding type in TorchRec's terms, and ranks that train embeddings under them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.distributed._shard.sharding_spec import EnumerableShardingSpec, ShardMetadata
from torchrec.distributed.types import EmbeddingModuleShardingPlan, ParameterSharding, ShardingPlan

from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.torchrec_bridge.train_check.batches import Batch
from neuroshard_pipeline.torchrec_bridge.truth.embeddings import RankIds, ShardedEmbeddings
from neuroshard_pipeline.torchrec_bridge.truth.params import StepParams

#: For every shard of a table: first row, first column, rows, columns and rank.
Rectangles = list[tuple[int, int, int, int, int]]


@dataclass(frozen=True)
class HandBuilt:
    """A plan that states TorchRec's sharding type and the rectangles of every table itself."""

    task: ShardingTask
    sharder: str
    tables: dict[str, tuple[str, Rectangles]]

    def to_torchrec(self, module: nn.ModuleDict, *_: object) -> ShardingPlan:
        """The plan of a module dictionary of collections, on CPUs of one host."""
        modules = {}
        for path, collection in module.items():
            names = [config.name for config in collection.embedding_bag_configs()]
            modules[path] = EmbeddingModuleShardingPlan({name: self._parameter(name) for name in names})
        return ShardingPlan(modules)

    def _parameter(self, name: str) -> ParameterSharding:
        sharding_type, rectangles = self.tables[name]
        shards = [ShardMetadata([r, c], [rows, columns], f"rank:{at}/cpu") for r, c, rows, columns, at in rectangles]
        ranks = [rectangle[-1] for rectangle in rectangles]
        if sharding_type == "data_parallel":
            return ParameterSharding(sharding_type, "dense", ranks, None)
        return ParameterSharding(sharding_type, "fused", ranks, EnumerableShardingSpec(shards))


def trained_sums(
    rank: int, world_size: int, plan: HandBuilt, batches: list[Batch], params: StepParams
) -> tuple[list[dict[str, float]], dict[str, list[list[float]]]]:
    """Train one step per batch from equal weights; return the times and this rank's pooled rows of the first batch."""
    device = torch.device("cpu")
    share = plan.task.batch_size // world_size
    part = slice(rank * share, (rank + 1) * share)
    ids = [RankIds(plan.task.tables, batch.ids, part, device) for batch in batches]
    embeddings = ShardedEmbeddings(plan, params, device)
    with torch.no_grad():
        for collection in embeddings.collections:
            for weight in collection.parameters():
                weight.fill_(0.5)
    times = [embeddings.step(each) for each in ids]
    pooled: dict[str, list[list[float]]] = {}
    for collection, keyed in zip(embeddings.collections, ids[0].keyed(), strict=True):
        pooled |= {name: values.tolist() for name, values in collection(keyed).to_dict().items()}
    return times, pooled


def expected_sums(task: ShardingTask, batches: list[Batch], learning_rate: float) -> dict[str, np.ndarray]:
    """The pooled rows of the first batch, computed with NumPy: gradients of ones, averaged over the ranks."""
    found = {}
    for at, table in enumerate(task.tables):
        weights = np.full(table.num_embeddings, 0.5)
        for batch in batches:
            counts = np.bincount(batch.ids[at].indices, minlength=table.num_embeddings)
            weights -= learning_rate * counts / task.world_size
        ids = batches[0].ids[at]
        sums = [weights[ids.indices[a:b]].sum() for a, b in zip(ids.offsets[:-1], ids.offsets[1:], strict=True)]
        found[table.name] = np.repeat(np.array(sums)[:, None], table.embedding_dim, axis=1)
    return found
