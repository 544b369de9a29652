"""Models, plans, and a training loop that compares a sharded model with the same model trained without sharding."""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence

import numpy as np
import torch
from search.small_models import small_models
from torch import nn
from torchrec import (
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
    JaggedTensor,
    KeyedJaggedTensor,
)
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embedding import EmbeddingCollectionSharder
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import Topology
from torchrec.distributed.types import ShardingPlan
from torchrec.models.dlrm import DLRM_DCN
from torchrec.modules.embedding_configs import PoolingType
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.optimizers import in_backward_optimizer_filter

from neuroshard_pipeline.search.params import default_memory
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.sharders.base import SharderSettings
from neuroshard_pipeline.tables.constraints import SEQUENCE_TYPES
from neuroshard_pipeline.tables.row_blocks import row_shards
from neuroshard_pipeline.tables.table import SHARDING_TYPES, Shard, Table, whole
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.torchrec_bridge import NeuroShardPlanner, PlannerOptions
from neuroshard_pipeline.torchrec_plan.modules import embedding_modules, read_module_tables

#: Sharding types of tables without tiers. Host rows have another type, `host_row_wise`, which `test_tiered` trains.
TYPES = tuple(name for name in SHARDING_TYPES if name != "host_row_wise")
DENSE_FEATURES = 13
#: World size → ranks per host.
HOSTS = {2: 2, 4: 2, 8: 4}
LOCAL_BATCH = 16
LEARNING_RATE = 0.1
#: Rows of 26 tables. Large and small tables alternate much as in MLPerf's DLRM-v2, whose sizes differ far more.
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
    """Four collections: one with widths of 4 to 64, a weighted one, a mean-pooled one, and one of sequences.

    Some tables have several features.
    """

    def __init__(self) -> None:
        super().__init__()
        self.plain = _collection("plain", [4, 12, 64, 48, 16], [50, 300, 200, 100, 81], [1, 2, 1, 1, 3])
        self.tower = nn.ModuleDict({"weighted": _collection("weighted", [16, 32, 8], [90, 60, 500], is_weighted=True)})
        self.mean = _collection("mean", [24, 16], [40, 333], [1, 2], pooling=PoolingType.MEAN)
        self.sequence = _sequences("sequence", [70, 45, 130], [1, 1, 2])
        widths = sum(config.embedding_dim * config.num_features() for config in configs_of(self))
        self.over = nn.Sequential(nn.Linear(DENSE_FEATURES + widths, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, dense: torch.Tensor, *ids: KeyedJaggedTensor) -> torch.Tensor:
        parts = []
        for collection, part in zip([self.plain, self.tower["weighted"], self.mean], ids, strict=False):
            outputs = collection(part)  # a sharded collection orders its outputs by rank
            parts += [outputs[feature] for feature in part.keys()]  # noqa: SIM118
        sequences = self.sequence(ids[-1])
        parts += [_summed(sequences[feature]) for feature in ids[-1].keys()]  # noqa: SIM118
        return self.over(torch.cat([dense, *parts], dim=1)).squeeze(-1)


def _summed(sequence: JaggedTensor) -> torch.Tensor:
    """For every sample, the sum of a nonlinear function of its rows."""
    return torch.segment_reduce(sequence.values().tanh(), "sum", lengths=sequence.lengths().long())


def _collection(
    name: str,
    dims: list[int],
    rows: list[int],
    features: list[int] | None = None,
    is_weighted: bool = False,
    pooling: PoolingType = PoolingType.SUM,
) -> EmbeddingBagCollection:
    features = features or [1] * len(dims)
    tables = [
        EmbeddingBagConfig(**_config(name, i, dim, num, count), pooling=pooling)
        for i, (dim, num, count) in enumerate(zip(dims, rows, features, strict=True))
    ]
    return EmbeddingBagCollection(tables=tables, is_weighted=is_weighted, device=torch.device("cpu"))


def _sequences(name: str, rows: list[int], features: list[int]) -> EmbeddingCollection:
    configs = [_config(name, i, 24, num, count) for i, (num, count) in enumerate(zip(rows, features, strict=True))]
    return EmbeddingCollection(tables=[EmbeddingConfig(**config) for config in configs], device=torch.device("cpu"))


def _config(name: str, number: int, dim: int, rows: int, features: int) -> dict:
    names = [f"{name}_{number}"] + [f"{name}_{number}_{at}" for at in range(1, features)]
    return {
        "name": f"t_{name}_{number}",
        "embedding_dim": dim,
        "num_embeddings": rows,
        "feature_names": names,
        # For most tables, this range is wider than the default ±1/sqrt(rows), so that they influence the loss at once.
        "init_fn": lambda weight: torch.nn.init.uniform_(weight, -0.5, 0.5),
    }


MODELS: dict[str, type[nn.Module]] = {"dlrm": Dlrm, "several_collections": SeveralCollections}


def configs_of(model: nn.Module) -> list:
    """TorchRec's configurations of all tables of a model."""
    return [config for collection in embedding_modules(model).values() for config in _configs(collection)]


def _configs(collection: nn.Module) -> list:
    is_pooled = isinstance(collection, EmbeddingBagCollection)
    return collection.embedding_bag_configs() if is_pooled else collection.embedding_configs()


def built(kind: str) -> nn.Module:
    """A model that is the same on every rank; SGD updates its tables in their backward pass."""
    model = _initial(kind)
    for collection in embedding_modules(model).values():
        apply_optimizer_in_backward(torch.optim.SGD, collection.parameters(), {"lr": LEARNING_RATE})
    return model


def _initial(kind: str) -> nn.Module:
    torch.manual_seed(0)
    return MODELS[kind]()


class Batches:
    """Random batches for a model; a sample is the same in a part of a batch as in the whole batch."""

    def __init__(self, model: nn.Module, world_size: int):
        self.collections = [
            (_configs(collection), isinstance(collection, EmbeddingBagCollection) and collection.is_weighted())
            for collection in embedding_modules(model).values()
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
        for name, rows in ((name, config.num_embeddings) for config in configs for name in config.feature_names):
            count = rng.integers(0, 6, self.samples)
            ends = np.cumsum(count)
            drawn = rng.integers(0, rows, ends[-1])
            importance = rng.uniform(0.5, 2.0, ends[-1]).astype(np.float32)
            taken = slice(ends[part.start] - count[part.start], ends[part.stop - 1])
            keys.append(name)
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
    task = task_of(model, world_size)
    placed = [shard for table in task.tables for shard in _column_shards(table, world_size, rng)]
    names = [shard.table.name for shard, _ in placed]
    second = next(i for i in range(1, len(names)) if names[i] == names[i - 1])
    placed[second] = placed[second][0], placed[second - 1][1]
    return _plan(task, placed, "column_wise")


def plan_of_types(
    model: nn.Module, world_size: int, local_world_size: int, types: Sequence[str], seed: int = 0
) -> Plan:
    """Every table has a random one of `types` that TorchRec can train it with, or else is column-wise."""
    rng = np.random.default_rng(seed)
    task = task_of(model, world_size, local_world_size)
    placed = []
    for table in task.tables:
        fitting = [name for name in types if name in _possible_types(table, types)]
        sharding_type = str(rng.choice(fitting)) if fitting else "column_wise"
        placed += _placed(table, sharding_type, task, rng)
    return _plan(task, placed, "+".join(types))


def plans_to_train(world_size: int) -> dict[str, tuple[str, Plan]]:
    """By name, a kind of model and a plan: uneven column shards, one plan per sharding type, and mixed plans."""
    models = {kind: built(kind) for kind in MODELS}
    plans = {f"{kind}, columns": (kind, random_plan(model, world_size)) for kind, model in models.items()}
    mixtures = [[name] for name in TYPES[1:]] + [["row_wise", "table_row_wise"], list(TYPES)]
    several = models["several_collections"]
    for seed, types in enumerate([*mixtures, list(TYPES)]):
        plan = plan_of_types(several, world_size, HOSTS[world_size], types, seed)
        plans[f"{'+'.join(types)}, seed {seed}"] = ("several_collections", plan)
    return plans


def task_of(model: nn.Module, world_size: int, local_world_size: int | None = None) -> ShardingTask:
    tables = [entry.table for entry in read_module_tables(model)]
    return ShardingTask(tables, world_size, LOCAL_BATCH * world_size, 2**30, local_world_size=local_world_size)


def _plan(task: ShardingTask, placed: list[tuple[Shard, int]], name: str) -> Plan:
    return Plan(task, tuple(shard for shard, _ in placed), tuple(rank for _, rank in placed), name)


def _possible_types(table: Table, types: Sequence[str]) -> Sequence[str]:
    """Types that TorchRec trains a table with, if tables of all `types` are in its module."""
    if table.pooling == "none":
        return SEQUENCE_TYPES
    if table.pooling == "mean":
        rows_are_cut = set(types) <= {"row_wise", "table_row_wise"}
        return types if rows_are_cut else ("column_wise", "data_parallel")
    return TYPES


def _placed(table: Table, sharding_type: str, task: ShardingTask, rng: np.random.Generator) -> list[tuple[Shard, int]]:
    ranks, local = range(task.world_size), task.ranks_per_host
    if sharding_type == "column_wise":
        return _column_shards(table, task.world_size, rng)
    if sharding_type == "data_parallel":
        return [(whole(table, "data_parallel"), rank) for rank in ranks]
    if sharding_type == "row_wise":
        return list(zip(row_shards(table, "row_wise", task.world_size), ranks, strict=True))
    ends = _cuts(table, rng) if sharding_type == "grid_shard" else [table.embedding_dim]
    placed = []
    for start, end in zip([0, *ends[:-1]], ends, strict=True):
        first = local * int(rng.integers(0, task.world_size // local))
        shards = row_shards(table, sharding_type, local, start, end - start)
        placed += list(zip(shards, range(first, first + local), strict=True))
    return placed


def _column_shards(table: Table, world_size: int, rng: np.random.Generator) -> list[tuple[Shard, int]]:
    ends = _cuts(table, rng)
    ranks = rng.integers(0, world_size, len(ends)).tolist()
    shards = [Shard(table, start, end - start) for start, end in zip([0, *ends[:-1]], ends, strict=True)]
    return list(zip(shards, ranks, strict=True))


def _cuts(table: Table, rng: np.random.Generator) -> list[int]:
    """Ends of uneven column blocks, or of a single block. Sequence tables have two blocks of equal width."""
    if table.pooling == "none":
        return [table.embedding_dim // 2, table.embedding_dim]
    pieces = table.embedding_dim // 4
    cuts = rng.choice(np.arange(1, pieces), size=min(2, pieces - 1), replace=False) if rng.random() < 0.5 else []
    return [4 * int(cut) for cut in sorted([*cuts, pieces])]


def planner(model: nn.Module, world_size: int, memory_bytes: int | None = None) -> NeuroShardPlanner:
    """A planner with a sample of batches; if `memory_bytes` is None, ranks have little more memory than tables need.

    The buffers of a batch do not count, so that only the tables take memory.
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


def train_both(rank: int, world_size: int, kind: str, plan: ShardingPlan, steps: int) -> list[tuple[float, float]]:
    """Losses per step of this rank's part under `plan`, and of the same samples in the unsharded model.

    Raises:
        AssertionError: the trained weights of a shard differ from the unsharded model's.
    """
    expected, first, trained = _trained_unsharded(kind, world_size, steps)
    parallel = sharded(built(kind), plan)
    for shard, original in _pairs(parallel, first):
        shard.copy_(original)
    # Replicated tables belong to the dense parameters, although an optimizer was attached to them.
    dense = [parameter for _, parameter in in_backward_optimizer_filter(parallel.named_parameters())]
    optimizer = torch.optim.SGD(dense, lr=LEARNING_RATE)
    part = slice(rank * LOCAL_BATCH, (rank + 1) * LOCAL_BATCH)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        mine = losses_of(parallel, _drawn(kind, world_size, step, rank)).mean()
        mine.backward()
        losses.append((mine.item(), expected[step][part].mean().item()))
        optimizer.step()
    for shard, original in _pairs(parallel, trained):
        torch.testing.assert_close(shard, original, rtol=1e-4, atol=1e-5)
    return losses


@functools.cache
def _trained_unsharded(
    kind: str, world_size: int, steps: int
) -> tuple[list[torch.Tensor], dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """For every step, the loss of every sample of all ranks in the unsharded model; its first and its trained weights.

    All plans of a rank are compared with the same training.
    """
    model = _initial(kind)
    batches = _batches(kind, world_size)
    first = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        losses.append(losses_of(model, batches.draw(step, slice(0, batches.samples))))
        losses[-1].mean().backward()
        optimizer.step()
    return [loss.detach() for loss in losses], first, model.state_dict()


@functools.cache
def _drawn(kind: str, world_size: int, step: int, rank: int) -> tuple:
    """The part of a batch that one rank trains with."""
    return _batches(kind, world_size).draw(step, slice(rank * LOCAL_BATCH, (rank + 1) * LOCAL_BATCH))


@functools.cache
def _batches(kind: str, world_size: int) -> Batches:
    return Batches(_initial(kind), world_size)


def sharded(model: nn.Module, plan: ShardingPlan) -> DistributedModelParallel:
    return DistributedModelParallel(
        model,
        device=torch.device("cpu"),
        plan=plan,
        sharders=[EmbeddingBagCollectionSharder(), EmbeddingCollectionSharder()],
    )


def losses_of(model: nn.Module, batch: tuple) -> torch.Tensor:
    dense, ids, labels = batch
    return nn.functional.binary_cross_entropy_with_logits(model(dense, *ids), labels, reduction="none")


def _pairs(
    sharded: DistributedModelParallel, weights: dict[str, torch.Tensor]
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """This rank's shards and replicas, each with the corresponding weights of the unsharded model."""
    pairs = []
    for name, value in sharded.state_dict().items():
        if hasattr(value, "local_shards"):
            for shard in value.local_shards():
                (row, column), (rows, columns) = shard.metadata.shard_offsets, shard.metadata.shard_sizes
                pairs.append((shard.tensor.detach(), weights[name][row : row + rows, column : column + columns]))
        else:
            pairs.append((value.detach(), weights[name]))
    return pairs
