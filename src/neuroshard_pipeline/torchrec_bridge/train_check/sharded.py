"""The model under a plan: TorchRec shards the tables; the dense network is replicated or sharded by `fully_shard`."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.torchrec_bridge.train_check.model import MixedWidthDlrm, initial_columns
from neuroshard_pipeline.torchrec_bridge.train_check.params import TrainingParams
from neuroshard_pipeline.torchrec_plan.extra import require_torchrec

require_torchrec()
from torchrec.distributed import DistributedModelParallel  # noqa: E402
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder  # noqa: E402
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward  # noqa: E402


def shard_model(plan: Plan, params: TrainingParams, device: torch.device) -> DistributedModelParallel:
    """The model with the plan's tables, sharded by the plan; its initial weights depend only on `params.seed`."""
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
        sharders=[EmbeddingBagCollectionSharder()],
        init_data_parallel=params.dense == "ddp",
    )
    if params.dense == "fsdp2":
        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        for part in sharded.module.dense_modules:
            fully_shard(part, mesh=mesh)
    _fill_tables(sharded, plan, params.seed)
    return sharded


@torch.no_grad()
def _fill_tables(sharded: DistributedModelParallel, plan: Plan, seed: int) -> None:
    """Fill this rank's shards with their columns of the initial weights."""
    tables = {table.name: table for table in plan.task.tables}
    state: dict[str, Any] = sharded.module.embedding_bag_collection.state_dict()
    for key, value in state.items():
        table = tables[key.removeprefix("embedding_bags.").removesuffix(".weight")]
        for shard in value.local_shards():
            columns = initial_columns(table, shard.metadata.shard_offsets[1], shard.metadata.shard_sizes[1], seed)
            shard.tensor.copy_(torch.from_numpy(columns))
