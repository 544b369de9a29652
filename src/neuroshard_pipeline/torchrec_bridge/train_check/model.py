"""A DLRM-v2 for tables of different widths, and its sharding by a plan. Initial weights do not depend on the plan.

Shapes: B samples, T tables, N ids, D the sum of the widths of all tables and of the last dense layer.
"""

import math
from collections.abc import Iterator, Sequence
from zlib import crc32

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import nn
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.tables.ids import TableIds
from neuroshard_pipeline.tables.table import COLUMN_GRANULARITY, Table
from neuroshard_pipeline.torchrec_bridge.train_check.batches import DENSE_FEATURES
from neuroshard_pipeline.torchrec_bridge.train_check.params import TrainingParams
from neuroshard_pipeline.torchrec_plan.comm_precision import torchrec_sharders
from neuroshard_pipeline.torchrec_plan.extra import require_torchrec
from neuroshard_pipeline.torchrec_plan.modules import embedding_bag_config

require_torchrec()
from torchrec.distributed import DistributedModelParallel  # noqa: E402
from torchrec.models.dlrm import DenseArch, OverArch  # noqa: E402
from torchrec.modules.crossnet import LowRankCrossNet  # noqa: E402
from torchrec.modules.embedding_modules import EmbeddingBagCollection  # noqa: E402
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward  # noqa: E402
from torchrec.optim.optimizers import in_backward_optimizer_filter  # noqa: E402
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor  # noqa: E402


class MixedWidthDlrm(nn.Module):
    """TorchRec's `DLRM_DCN` (MLPerf's DLRM-v2, cross network of arXiv 2008.13535) for tables of different widths.

    It consists of the same parts as `DLRM_DCN`, and computes the same function if all tables and the last dense layer
    have the same width. The tables are on the meta device, the dense network is on the CPU with seeded weights.
    """

    def __init__(self, tables: Sequence[Table], params: TrainingParams) -> None:
        """Build the model; every table has one feature of the same name."""
        super().__init__()
        self.feature_names = [table.name for table in tables]
        configs = [embedding_bag_config(table.name, table) for table in tables]
        width = params.dense_layers[-1] + sum(table.embedding_dim for table in tables)
        self.embedding_bag_collection = EmbeddingBagCollection(tables=configs, device=torch.device("meta"))
        self.dense_arch = DenseArch(DENSE_FEATURES, list(params.dense_layers))
        self.cross = LowRankCrossNet(width, params.cross_layers, params.cross_rank)
        self.over_arch = OverArch(width, [*params.over_layers, 1])
        _initialise(self.dense_parameters(), params.seed)

    def forward(self, dense: torch.Tensor, ids: KeyedJaggedTensor) -> torch.Tensor:
        """Logits (B,) of dense features (B, 13) and the ids of all tables."""
        pooled = self.embedding_bag_collection(ids).to_dict()  # a sharded collection orders its columns by rank
        features = torch.cat([self.dense_arch(dense), *(pooled[name] for name in self.feature_names)], dim=1)  # (B, D)
        return self.over_arch(self.cross(features)).squeeze(-1)

    @property
    def dense_modules(self) -> tuple[nn.Module, ...]:
        """The parts of the dense network."""
        return self.dense_arch, self.cross, self.over_arch

    def dense_parameters(self) -> Iterator[nn.Parameter]:
        """Parameters of the dense network."""
        for part in self.dense_modules:
            yield from part.parameters()


def _initialise(parameters: Iterator[nn.Parameter], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in parameters:
        if parameter.dim() > 1:
            nn.init.xavier_uniform_(parameter, generator=generator)
        else:
            nn.init.zeros_(parameter)


def initial_columns(table: Table, column_offset: int, width: int, seed: int) -> NDArray[np.float32]:
    """The initial weights (rows, width) of `width` columns from `column_offset` on, the same for every sharding.

    They are uniform within ±1/sqrt(embedding_dim * pooling_factor). Pooled rows of all tables then have similar
    norms. Every table therefore influences the loss from the first step on, and an id that is sent to a wrong rank
    changes the loss.
    """
    limit = 1.0 / math.sqrt(table.embedding_dim * max(table.pooling_factor, 1.0))
    values = np.empty((table.num_embeddings, width), dtype=np.float32)
    for at in range(0, width, COLUMN_GRANULARITY):
        rng = np.random.default_rng([seed, crc32(table.name.encode()), column_offset + at])
        block = rng.random((table.num_embeddings, COLUMN_GRANULARITY), dtype=np.float32)
        values[:, at : at + COLUMN_GRANULARITY] = limit * (2.0 * block - 1.0)
    return values


def keyed_ids(names: Sequence[str], ids: Sequence[TableIds], part: slice) -> KeyedJaggedTensor:
    """The ids of the samples in `part` of one batch; lengths are int32, as in TorchRec's own data sets.

    Args:
        names: names of T features.
        ids: the ids of T features in the whole batch.
        part: a range of samples, with start and stop.
    """
    values = [of.indices[of.offsets[part.start] : of.offsets[part.stop]] for of in ids]
    lengths = [np.diff(of.offsets[part.start : part.stop + 1]).astype(np.int32) for of in ids]
    return KeyedJaggedTensor(
        list(names), torch.from_numpy(np.concatenate(values)), lengths=torch.from_numpy(np.concatenate(lengths))
    )


def shard_model(plan: Plan, params: TrainingParams, device: torch.device) -> DistributedModelParallel:
    """The model with the plan's tables, sharded by the plan; its initial weights do not depend on the sharding."""
    model = MixedWidthDlrm(plan.task.tables, params)
    for part in model.dense_modules:
        part.to(device)
    apply_optimizer_in_backward(
        torch.optim.SGD, model.embedding_bag_collection.parameters(), {"lr": params.learning_rate}
    )
    sharded = DistributedModelParallel(
        model,
        device=device,
        plan=plan.to_torchrec(model, compute_device=params.compute_device),
        sharders=torchrec_sharders(plan.task.comm_precision, params.compute_device),
        init_data_parallel=params.dense == "ddp",
    )
    if params.dense == "fsdp2":
        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        for part in sharded.module.dense_modules:
            fully_shard(part, mesh=mesh)
    _fill_tables(sharded, plan, params.seed)
    return sharded


def dense_optimizer(sharded: DistributedModelParallel, params: TrainingParams) -> torch.optim.SGD:
    """The optimizer of the dense network and of replicated tables, whose gradients are dense, too."""
    model = sharded.module
    replicas = [
        weights for _, weights in in_backward_optimizer_filter(model.embedding_bag_collection.named_parameters())
    ]
    groups = [{"params": list(model.dense_parameters())}, {"params": replicas}]
    return torch.optim.SGD([group for group in groups if group["params"]], lr=params.learning_rate)


@torch.no_grad()
def _fill_tables(sharded: DistributedModelParallel, plan: Plan, seed: int) -> None:
    """Fill this rank's shards and replicas with their part of the initial weights."""
    tables = {table.name: table for table in plan.task.tables}
    state = sharded.module.embedding_bag_collection.state_dict()
    for key, value in state.items():
        table = tables[key.removeprefix("embedding_bags.").removesuffix(".weight")]
        for tensor, (row, column) in _parts(value):
            rows, width = tensor.shape
            columns = initial_columns(table, column, width, seed)
            tensor.copy_(torch.from_numpy(columns[row : row + rows]))


def _parts(weights: ShardedTensor | torch.Tensor) -> list[tuple[torch.Tensor, Sequence[int]]]:
    """This rank's shards of a table, each with its first row and column; a replica counts as one shard."""
    if isinstance(weights, ShardedTensor):
        return [(shard.tensor, shard.metadata.shard_offsets) for shard in weights.local_shards()]
    return [(weights, (0, 0))]
