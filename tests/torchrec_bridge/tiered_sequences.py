"""A model whose sequence tables are cut into tiers (blocks of rows by popularity), and ids for it."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np
import torch
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
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.optim.rowwise_adagrad import RowWiseAdagrad

from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.tables.row_blocks import row_shards
from neuroshard_pipeline.tables.table import Shard, Table, whole
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.tables.tiers import Cuts, tiered_task
from neuroshard_pipeline.torchrec_bridge.tiered import RankGroups, put_tiers
from neuroshard_pipeline.torchrec_plan.modules import read_module_tables

SAMPLES_PER_RANK = 6
STEPS = 3
LEARNING_RATE = 0.1
WIDTH = 8
OPTIMIZERS = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad, "rowwise_adagrad": RowWiseAdagrad}
#: Table → rows, features and cuts. The feature `shared` looks up two tables; no sample has ids of `empty`.
SEQUENCES = {
    "all_tiers": (90, ["a", "shared"], Cuts(7, 15)),
    "two_features": (51, ["b", "b2"], Cuts(3, 8)),
    "only_hot": (8, ["c"], Cuts(8, 0)),
    "only_host": (21, ["d"], Cuts(0, 21)),
    "no_tiers": (64, ["e", "shared"], Cuts()),
    "no_host": (70, ["f"], Cuts(9, 0)),
    "no_hot": (50, ["g", "empty"], Cuts(0, 13)),
}


@dataclass(frozen=True)
class Case:
    """How the tables are sharded and trained.

    Attributes:
        optimizer: a key of `OPTIMIZERS`.
        sharding_type: of cold rows, and of sequence tables without tiers.
        index_dedup: whether distinct ids are exchanged once.
        ranks_per_host: ranks of a host.
        has_tiers: whether tables have tiers.
        comm_precision: number format of rows between ranks.
    """

    optimizer: str
    sharding_type: str
    index_dedup: bool
    ranks_per_host: int
    has_tiers: bool = True
    comm_precision: str = "fp32"


class TieredModel(nn.Module):
    """A collection of sequence tables and one of pooled tables."""

    def __init__(self) -> None:
        super().__init__()
        configs = [
            EmbeddingConfig(
                name=name, embedding_dim=WIDTH, num_embeddings=rows, feature_names=list(features), init_fn=_fill
            )
            for name, (rows, features, _) in SEQUENCES.items()
        ]
        self.sequence = EmbeddingCollection(tables=configs, device=torch.device("cpu"), need_indices=True)
        pooled = EmbeddingBagConfig(name="p", embedding_dim=4, num_embeddings=30, feature_names=["p"], init_fn=_fill)
        self.pooled = EmbeddingBagCollection(tables=[pooled], device=torch.device("cpu"))
        self.names = [name for names in self.sequence.embedding_names_by_table() for name in names]
        self.over = nn.Linear(WIDTH * len(self.names) + 4, 1)

    def forward(self, ids: KeyedJaggedTensor, pooled_ids: KeyedJaggedTensor) -> torch.Tensor:
        rows = self.sequence(ids)
        parts = [summed(rows[name]) for name in self.names]
        return self.over(torch.cat([*parts, self.pooled(pooled_ids)["p"]], dim=1)).squeeze(-1)


def _fill(weight: torch.Tensor) -> None:
    nn.init.uniform_(weight, -0.5, 0.5)


def summed(rows: JaggedTensor) -> torch.Tensor:
    """For every sample, the sum of a function of its rows, their places in the sequence and their ids."""
    place = torch.arange(len(rows.values())) - rows.offsets()[:-1].repeat_interleave(rows.lengths().long())
    scale = 1.0 + 0.1 * place + 0.01 * rows.weights()
    return torch.segment_reduce(rows.values().tanh() * scale[:, None], "sum", lengths=rows.lengths().long())


def popular_rows(name: str) -> torch.Tensor:
    """Ids of a table's popular (hot and host) rows, the most popular first, and of one cold row if there is one."""
    rows, _, cuts = SEQUENCES[name]
    order = np.random.default_rng(rows).permutation(rows)
    return torch.from_numpy(order[: cuts.hot_rows + cuts.host_rows + 1])


def drawn_ids(step: int, samples: int, part: slice) -> tuple[KeyedJaggedTensor, KeyedJaggedTensor]:
    """Ids of the samples in `part`.

    Step 0 has popular ids only. Step 1 has none of them, with two exceptions: `shared` may have any ids, and `c` and
    `d`, whose tables have no cold rows, have their least popular id.
    """
    rng = np.random.default_rng(step + 2)
    keys, values = ["unused"], [np.zeros(samples, dtype=np.int64)[part]]
    lengths = [np.ones(samples, dtype=np.int64)[part]]
    features = {name: rows for _, (rows, names, _) in SEQUENCES.items() for name in names}
    of_table = {name: table for table, (_, names, _) in SEQUENCES.items() for name in names}
    for name in sorted(features | {"shared": 64}):
        rows = 64 if name == "shared" else features[name]
        popular = popular_rows(of_table[name]).numpy()[:-1]
        allowed = np.arange(rows)
        if step == 0:
            allowed = np.intersect1d(allowed, popular)
        if step == 1:
            allowed = np.setdiff1d(allowed, popular)
        count = rng.integers(0, 6, samples) * (name != "empty") * (len(allowed) > 0)
        ends = np.cumsum(count)
        drawn = rng.choice(allowed, ends[-1]) if ends[-1] else np.empty(0, dtype=np.int64)
        keys.append(name)
        values.append(drawn[ends[part.start] - count[part.start] : ends[part.stop - 1]])
        lengths.append(count[part])
    pooled = rng.integers(0, 30, samples)[part]
    return (
        KeyedJaggedTensor(
            keys, torch.from_numpy(np.concatenate(values)), lengths=torch.from_numpy(np.concatenate(lengths))
        ),
        KeyedJaggedTensor(["p"], torch.from_numpy(pooled), lengths=torch.ones(len(pooled), dtype=torch.int32)),
    )


def plan_of(model: TieredModel, case: Case, world_size: int) -> Plan:
    """A plan with tiers; the cold rows of a table are cut over all ranks, split by columns, or whole on one rank."""
    tables = [entry.table for entry in read_module_tables(model)]
    task = ShardingTask(
        tables,
        world_size,
        SAMPLES_PER_RANK * world_size,
        2**30,
        local_world_size=case.ranks_per_host,
        tiers=True,
        index_dedup=case.index_dedup,
        comm_precision=case.comm_precision,
    )
    cuts = {name: cuts for name, (_, _, cuts) in SEQUENCES.items() if cuts and case.has_tiers}
    if task.num_hosts == 1:
        cuts = {name: Cuts(own.hot_rows) for name, own in cuts.items()}
    task = tiered_task(task, cuts)
    placed = [entry for at, table in enumerate(task.tables) for entry in _placed(table, at, case, task)]
    shards, ranks = zip(*placed, strict=True)
    return Plan(task, shards, ranks, "by hand", compute_device="cpu")


def _placed(table: Table, at: int, case: Case, task: ShardingTask) -> list[tuple[Shard, int]]:
    ranks = range(task.world_size)
    kind = None if table.tier is None else table.tier.kind
    if kind == "hot":
        return [(whole(table, "data_parallel"), rank) for rank in ranks]
    if kind == "host":
        shards = row_shards(table, "host_row_wise", task.ranks_per_host)
        return [(shard, host + place) for host in ranks[:: task.ranks_per_host] for place, shard in enumerate(shards)]
    if table.pooling == "none" and case.sharding_type == "row_wise":
        return list(zip(row_shards(table, "row_wise", task.world_size), ranks, strict=True))
    if table.pooling == "none" and case.sharding_type == "column_wise":
        return [(Shard(table, column, WIDTH // 2), (at + column) % task.world_size) for column in (0, WIDTH // 2)]
    return [(whole(table), at % task.world_size)]


def tiered_model(model: TieredModel, case: Case, groups: RankGroups) -> DistributedModelParallel:
    """A copy of the model, sharded over all ranks by `plan_of`."""
    model = copy.deepcopy(model)
    weight = model.pooled.embedding_bags["p"].weight.detach().clone()
    for tables in (model.sequence, model.pooled):
        apply_optimizer_in_backward(OPTIMIZERS[case.optimizer], tables.parameters(), {"lr": LEARNING_RATE})
    plan = plan_of(model, case, groups.world.size())
    rest = put_tiers(model, plan, {name: popular_rows(name) for name in SEQUENCES}, groups)
    assert list(rest.plan) == ["pooled"]
    parallel = DistributedModelParallel(model, device=torch.device("cpu"), plan=rest)
    for shard in module_of(parallel).pooled.state_dict()["embedding_bags.p.weight"].local_shards():
        shard.tensor.detach().copy_(weight)  # TorchRec calls `init_fn` again
    return parallel


def module_of(parallel: DistributedModelParallel) -> TieredModel:
    """The model inside `DistributedModelParallel` and, if there is one, `DistributedDataParallel`."""
    return getattr(parallel.module, "module", parallel.module)
