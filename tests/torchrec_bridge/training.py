"""Models, plans and a training loop that trains a sharded model and the same unsharded model side by side."""

from __future__ import annotations

import copy

import numpy as np
import torch
from search.small_models import small_models
from torch import nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import Topology
from torchrec.distributed.types import ShardingPlan
from torchrec.models.dlrm import DLRM_DCN
from torchrec.modules.embedding_configs import PoolingType
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward

from neuroshard_pipeline.search.params import default_memory
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.sharders.base import SharderSettings
from neuroshard_pipeline.tables.table import Shard
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.torchrec_bridge import NeuroShardPlanner, PlannerOptions
from neuroshard_pipeline.torchrec_plan.modules import embedding_bag_collections, read_module_tables

DENSE_FEATURES = 13
LOCAL_BATCH = 16
LEARNING_RATE = 0.1
#: Rows in similar proportions to those of the 26 tables of MLPerf's DLRM-v2.
ROWS = [400, 390, 170, 70, 200, 3, 71, 15, 63, 400, 350, 230, 10, 22, 119, 4, 10, 14, 400, 400, 400, 380, 108, 36, 5, 4]


class Dlrm(nn.Module):
    """TorchRec's DLRM-v2 with 26 tables of 32 columns."""

    def __init__(self) -> None:
        super().__init__()
        self.model = DLRM_DCN(
            embedding_bag_collection=_collection("cat", [32] * len(ROWS), ROWS),
            dense_in_features=DENSE_FEATURES,
            dense_arch_layer_sizes=[64, 32],
            over_arch_layer_sizes=[64, 32, 1],
            dcn_num_layers=2,
            dcn_low_rank_dim=16,
        )

    def forward(self, dense: torch.Tensor, ids: KeyedJaggedTensor) -> torch.Tensor:
        return self.model(dense, ids).squeeze(-1)


class SeveralCollections(nn.Module):
    """Three collections: widths of 4 to 64, a weighted one, and a mean-pooled one of a single table."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = _collection("plain", [4, 12, 64, 48], [50, 300, 200, 100])
        self.tower = nn.ModuleDict({"weighted": _collection("weighted", [16, 32, 8], [90, 60, 500], is_weighted=True)})
        self.mean = _collection("mean", [24], [40], pooling=PoolingType.MEAN)
        self.over = nn.Sequential(nn.Linear(DENSE_FEATURES + 128 + 56 + 24, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, dense: torch.Tensor, *ids: KeyedJaggedTensor) -> torch.Tensor:
        collections = [self.plain, self.tower["weighted"], self.mean]
        pooled = []
        for collection, part in zip(collections, ids, strict=True):
            outputs = collection(part)  # a sharded collection orders its outputs by rank
            pooled += [outputs[feature] for feature in part.keys()]  # noqa: SIM118
        return self.over(torch.cat([dense, *pooled], dim=1)).squeeze(-1)


def _collection(
    name: str, dims: list[int], rows: list[int], is_weighted: bool = False, pooling: PoolingType = PoolingType.SUM
) -> EmbeddingBagCollection:
    tables = [
        EmbeddingBagConfig(
            name=f"t_{name}_{i}",
            embedding_dim=dim,
            num_embeddings=num,
            feature_names=[f"{name}_{i}"],
            pooling=pooling,
            # Fifty times the default range, so that the tables influence the loss from the first step on.
            init_fn=lambda weight: torch.nn.init.uniform_(weight, -0.5, 0.5),
        )
        for i, (dim, num) in enumerate(zip(dims, rows, strict=True))
    ]
    return EmbeddingBagCollection(tables=tables, is_weighted=is_weighted, device=torch.device("cpu"))


MODELS: dict[str, type[nn.Module]] = {"dlrm": Dlrm, "several_collections": SeveralCollections}


def built(kind: str) -> nn.Module:
    """The same model on every rank, whose tables are trained by SGD in their backward pass."""
    torch.manual_seed(0)
    model = MODELS[kind]()
    for collection in embedding_bag_collections(model).values():
        apply_optimizer_in_backward(torch.optim.SGD, collection.parameters(), {"lr": LEARNING_RATE})
    return model


class Batches:
    """Random batches of a model; a part of a batch holds the same samples as the whole batch."""

    def __init__(self, model: nn.Module, world_size: int):
        self.collections = [
            (collection.embedding_bag_configs(), collection.is_weighted())
            for collection in embedding_bag_collections(model).values()
        ]
        self.samples = LOCAL_BATCH * world_size

    def draw(self, step: int, part: slice) -> tuple[torch.Tensor, list[KeyedJaggedTensor], torch.Tensor]:
        """Dense features, ids of every collection, and labels of the samples in `part`."""
        rng = np.random.default_rng(step)
        dense = rng.normal(size=(self.samples, DENSE_FEATURES)).astype(np.float32)
        labels = rng.integers(0, 2, self.samples).astype(np.float32)
        ids = [self._ids(rng, configs, weighted, part) for configs, weighted in self.collections]
        return torch.from_numpy(dense[part]), ids, torch.from_numpy(labels[part])

    def _ids(self, rng: np.random.Generator, configs: list, weighted: bool, part: slice) -> KeyedJaggedTensor:
        values, lengths, weights, keys = [], [], [], []
        for config in configs:
            count = rng.integers(0, 6, self.samples)
            ends = np.cumsum(count)
            drawn = rng.integers(0, config.num_embeddings, ends[-1])
            importance = rng.uniform(0.5, 2.0, ends[-1]).astype(np.float32)
            taken = slice(ends[part.start] - count[part.start], ends[part.stop - 1])
            keys.append(config.feature_names[0])
            values.append(drawn[taken])
            weights.append(importance[taken])
            lengths.append(count[part])
        return KeyedJaggedTensor(
            keys,
            torch.from_numpy(np.concatenate(values)),
            torch.from_numpy(np.concatenate(weights)) if weighted else None,
            lengths=torch.from_numpy(np.concatenate(lengths)),
        )


def random_plan(model: nn.Module, world_size: int, seed: int = 0) -> Plan:
    """Uneven column shards on random ranks; two shards of the first split table are on the same rank."""
    rng = np.random.default_rng(seed)
    tables = [entry.table for entry in read_module_tables(model)]
    task = ShardingTask(tables, world_size, LOCAL_BATCH * world_size, 2**30)
    shards: list[Shard] = []
    ranks: list[int] = []
    for table in tables:
        pieces = table.embedding_dim // 4
        cuts = rng.choice(np.arange(1, pieces), size=min(2, pieces - 1), replace=False) if rng.random() < 0.5 else []
        ends = [4 * int(cut) for cut in sorted([*cuts, pieces])]
        shards += [Shard(table, start, end - start) for start, end in zip([0, *ends[:-1]], ends, strict=True)]
        ranks += rng.integers(0, world_size, len(ends)).tolist()
    names = [shard.table.name for shard in shards]
    second = next(i for i in range(1, len(names)) if names[i] == names[i - 1])
    ranks[second] = ranks[second - 1]
    return Plan(task, tuple(shards), tuple(ranks), "random")


def planner(model: nn.Module, world_size: int, memory_bytes: int | None = None) -> NeuroShardPlanner:
    """A planner with a sample of batches; if `memory_bytes` is None, memory is so short that some tables are split.

    The buffers of a batch do not count, so that the tables alone decide what is split.
    """
    if memory_bytes is None:
        tables = [entry.table for entry in read_module_tables(model)]
        memory_bytes = (
            max(sum(t.weight_bytes for t in tables) // world_size, max(t.weight_bytes for t in tables)) * 5 // 4
        )
    part = slice(0, LOCAL_BATCH)
    return NeuroShardPlanner(
        small_models(),
        Topology(world_size, "cpu", ddr_cap=memory_bytes, local_world_size=world_size, created_by_factory=True),
        LOCAL_BATCH,
        batches=[ids for step in range(2 * world_size) for ids in Batches(model, world_size).draw(step, part)[1]],
        options=PlannerOptions(settings=SharderSettings(memory=default_memory())),
    )


def train_both(
    rank: int, world_size: int, model: nn.Module, plan: ShardingPlan, steps: int
) -> list[tuple[float, float]]:
    """Losses per step of this rank's part under `plan`, and of the same samples in the unsharded model.

    Raises:
        AssertionError: the trained weights of a shard differ from the unsharded model's.
    """
    whole, batches = copy.deepcopy(model), Batches(model, world_size)
    parallel = sharded(model, plan)
    for shard, original in _pairs(parallel, whole):
        shard.copy_(original)
    dense = [p for name, p in parallel.named_parameters() if "embedding_bags" not in name]
    optimizers = [torch.optim.SGD(dense, lr=LEARNING_RATE), torch.optim.SGD(whole.parameters(), lr=LEARNING_RATE)]
    part = slice(rank * LOCAL_BATCH, (rank + 1) * LOCAL_BATCH)
    losses = []
    for step in range(steps):
        for optimizer in optimizers:
            optimizer.zero_grad()
        mine = losses_of(parallel, batches.draw(step, part))
        mine.mean().backward()
        everything = losses_of(whole, batches.draw(step, slice(0, batches.samples)))
        everything.mean().backward()
        losses.append((mine.mean().item(), everything[part].mean().item()))
        for optimizer in optimizers:
            optimizer.step()
    for shard, original in _pairs(parallel, whole):
        torch.testing.assert_close(shard, original, rtol=1e-4, atol=1e-5)
    return losses


def sharded(model: nn.Module, plan: ShardingPlan) -> DistributedModelParallel:
    return DistributedModelParallel(
        model, device=torch.device("cpu"), plan=plan, sharders=[EmbeddingBagCollectionSharder()]
    )


def losses_of(model: nn.Module, batch: tuple) -> torch.Tensor:
    dense, ids, labels = batch
    return nn.functional.binary_cross_entropy_with_logits(model(dense, *ids), labels, reduction="none")


def _pairs(sharded: DistributedModelParallel, whole: nn.Module) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """This rank's shards, each with the corresponding weights of the unsharded model."""
    weights = whole.state_dict()
    pairs = []
    for name, value in sharded.state_dict().items():
        if hasattr(value, "local_shards"):
            for shard in value.local_shards():
                (row, column), (rows, columns) = shard.metadata.shard_offsets, shard.metadata.shard_sizes
                pairs.append((shard.tensor.detach(), weights[name][row : row + rows, column : column + columns]))
    return pairs
