"""The models: a DLRM-v2 for tables of different widths, and DHEN (`dhen`). Initial weights do not depend on the plan.

Shapes: B samples, T tables, N ids, D the sum of the widths of all tables and of the last dense layer.
"""

import math
from collections.abc import Sequence
from zlib import crc32

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits

from neuroshard_pipeline.tables.ids import TableIds
from neuroshard_pipeline.tables.table import COLUMN_GRANULARITY, Table
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.torchrec_bridge.train_check.batches import DENSE_FEATURES
from neuroshard_pipeline.torchrec_bridge.train_check.dhen import Dhen
from neuroshard_pipeline.torchrec_bridge.train_check.params import ModelName, TrainingParams
from neuroshard_pipeline.torchrec_plan.extra import require_torchrec
from neuroshard_pipeline.torchrec_plan.modules import embedding_bag_config

require_torchrec()
from torchrec.datasets.utils import Batch  # noqa: E402
from torchrec.models.dlrm import DenseArch, OverArch  # noqa: E402
from torchrec.modules.crossnet import LowRankCrossNet  # noqa: E402
from torchrec.modules.embedding_modules import EmbeddingBagCollection  # noqa: E402
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor  # noqa: E402


class Dlrm(nn.Module):
    """The dense network of TorchRec's `DLRM_DCN` (MLPerf's DLRM-v2) for tables of different widths.

    It consists of the same parts as `DLRM_DCN`, with the cross network of arXiv 2008.13535, and computes the same
    function if all tables and the last dense layer have the same width. `layers` may each be sharded on its own.
    """

    def __init__(self, widths: Sequence[int], params: TrainingParams) -> None:
        super().__init__()
        width = params.dense_layers[-1] + sum(widths)
        self.layers = nn.ModuleList(
            [
                DenseArch(DENSE_FEATURES, list(params.dense_layers)),
                LowRankCrossNet(width, params.cross_layers, params.cross_rank),
                OverArch(width, [*params.over_layers, 1]),
            ]
        )

    def forward(self, dense: torch.Tensor, pooled: torch.Tensor) -> torch.Tensor:
        """Logits (B,) of dense features (B, 13) and the pooled rows (B, sum of the widths) of all tables."""
        dense_arch, cross, over = self.layers
        return over(cross(torch.cat([dense_arch(dense), pooled], dim=1))).squeeze(-1)  # (B, D) inside


def dense_network(name: ModelName, tables: Sequence[Table], params: TrainingParams) -> Dlrm | Dhen:
    """The dense network of a model, with seeded weights, or on the meta device in its context."""
    widths = [table.embedding_dim for table in tables]
    made = Dlrm(widths, params) if name == "dlrm" else Dhen(widths, params)
    generator = torch.Generator().manual_seed(params.seed)
    for path, parameter in made.named_parameters():
        if parameter.is_meta:
            continue
        if parameter.dim() > 1:
            nn.init.xavier_uniform_(parameter, generator=generator)
        else:  # 1 for weights of normalisations, 0 for biases
            nn.init.constant_(parameter, float(path.endswith("weight")))
    return made


class RankingModel(nn.Module):
    """Embedding tables on the meta device, with a feature of the same name each, and a seeded dense network."""

    def __init__(self, name: ModelName, tables: Sequence[Table], params: TrainingParams) -> None:
        super().__init__()
        self.feature_names = [table.name for table in tables]
        configs = [embedding_bag_config(table.name, table) for table in tables]
        self.embedding_bag_collection = EmbeddingBagCollection(tables=configs, device=torch.device("meta"))
        self.dense = dense_network(name, tables, params)

    def forward(self, batch: Batch) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """The mean loss to be trained; and the loss and the logits (B,) without gradients."""
        pooled = self.embedding_bag_collection(batch.sparse_features).to_dict()
        features = [pooled[name] for name in self.feature_names]  # a sharded collection orders its columns by rank
        logits = self.dense(batch.dense_features, torch.cat(features, dim=1))
        loss = binary_cross_entropy_with_logits(logits, batch.labels)
        return loss, (loss.detach(), logits.detach())


def initial_columns(table: Table, column_offset: int, width: int, seed: int) -> NDArray[np.float32]:
    """The initial weights (rows, width) of `width` columns from `column_offset` on, the same for every sharding.

    They are uniform within ±1/sqrt(embedding_dim * pooling_factor), so that every table influences the loss at once.
    """
    limit = 1.0 / math.sqrt(table.embedding_dim * max(table.pooling_factor, 1.0))
    values = np.empty((table.num_embeddings, width), dtype=np.float32)
    for at in range(0, width, COLUMN_GRANULARITY):
        rng = np.random.default_rng([seed, crc32(table.name.encode()), column_offset + at])
        block = rng.random((table.num_embeddings, COLUMN_GRANULARITY), dtype=np.float32)
        values[:, at : at + COLUMN_GRANULARITY] = limit * (2.0 * block - 1.0)
    return values


def keyed_ids(names: Sequence[str], ids: Sequence[TableIds], part: slice) -> KeyedJaggedTensor:
    """The ids of the samples in `part`, a slice of one batch, of T features; their lengths are int32, as TorchRec's."""
    values = [of.indices[of.offsets[part.start] : of.offsets[part.stop]] for of in ids]
    lengths = [np.diff(of.offsets[part.start : part.stop + 1]).astype(np.int32) for of in ids]
    return KeyedJaggedTensor(
        list(names), torch.from_numpy(np.concatenate(values)), lengths=torch.from_numpy(np.concatenate(lengths))
    )


def share_of_rank(task: ShardingTask) -> slice:
    """The samples of this rank in a global batch."""
    share, rank = task.batch_size // task.world_size, dist.get_rank()
    return slice(rank * share, (rank + 1) * share)
