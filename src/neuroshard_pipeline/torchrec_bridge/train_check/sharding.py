"""Shards a model: its tables by a plan, its dense network by a mode, and counts what the dense network leaves.

The modes are TorchRec's DistributedDataParallel (`ddp`), and FSDP2's `fully_shard` over all ranks (`fsdp2`) or in the
hybrid form of [Zhang et al. 2022, arXiv:2203.11014] (`hybrid`): every host holds all parameters once, each rank a part
of them; gradients are reduced inside the hosts, and the parts then across hosts.
"""

import functools
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard

from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.torchrec_bridge.train_check.batches import DENSE_FEATURES
from neuroshard_pipeline.torchrec_bridge.train_check.dhen import Dhen
from neuroshard_pipeline.torchrec_bridge.train_check.model import Dlrm, RankingModel, dense_network, initial_columns
from neuroshard_pipeline.torchrec_bridge.train_check.params import DenseMode, ModelName, TrainingParams
from neuroshard_pipeline.torchrec_plan.comm_precision import torchrec_sharders
from neuroshard_pipeline.torchrec_plan.extra import require_torchrec

require_torchrec()
from torchrec.distributed import DistributedModelParallel  # noqa: E402
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward  # noqa: E402
from torchrec.optim.optimizers import in_backward_optimizer_filter  # noqa: E402


def shard_model(
    plan: Plan, name: ModelName, mode: DenseMode, params: TrainingParams, device: torch.device
) -> DistributedModelParallel:
    """The model with the plan's tables, sharded by the plan; its initial weights do not depend on the sharding."""
    model = RankingModel(name, plan.task.tables, params)
    model.dense.to(device)
    apply_optimizer_in_backward(
        torch.optim.SGD, model.embedding_bag_collection.parameters(), {"lr": params.learning_rate}
    )
    sharded = DistributedModelParallel(
        model,
        device=device,
        plan=plan.to_torchrec(model, plan.task.local_world_size, params.compute_device),
        sharders=torchrec_sharders(plan.task.comm_precision, params.compute_device),
        init_data_parallel=mode == "ddp",
    )
    if mode != "ddp":
        shard_dense(sharded.module.dense, mode, plan.task, device)
    _fill_tables(sharded, plan, params.seed)
    return sharded


def shard_dense(dense: Dlrm | Dhen, mode: DenseMode, task: ShardingTask, device: torch.device) -> None:
    """Shard every layer of a dense network with `fully_shard`."""
    mesh = _mesh(shard_sizes(mode, task), device.type, dist.group.WORLD)
    for part in (*dense.layers, dense):
        fully_shard(part, mesh=mesh)


def shard_sizes(mode: DenseMode, task: ShardingTask) -> tuple[int, ...]:
    """Sizes of the device mesh: the last one is the number of ranks that parameters are sharded over."""
    if mode == "hybrid":
        return task.num_hosts, task.ranks_per_host
    return (task.world_size,) if mode == "fsdp2" else (task.world_size, 1)


@functools.cache  # every mesh has process groups of its own
def _mesh(sizes: tuple[int, ...], device_type: str, _: dist.ProcessGroup) -> DeviceMesh:
    return init_device_mesh(device_type, sizes, mesh_dim_names=("hosts", "ranks")[-len(sizes) :])


def dense_memory_bytes(name: ModelName, mode: DenseMode, task: ShardingTask, params: TrainingParams) -> int:
    """Memory of a rank for the dense network, trained by SGD, which has no state.

    It counts weights and gradients, what the backward pass needs of the forward pass, and with `fully_shard` also the
    weights of two whole layers and the gradients of one. Pooled rows are part of the memory of embeddings.
    """
    with torch.device("meta"):
        dense = dense_network(name, task.tables, params)
        rows, width = task.batch_size // task.world_size, sum(table.embedding_dim for table in task.tables)
        inputs = torch.empty(rows, DENSE_FEATURES), torch.empty(rows, width, requires_grad=True)
    ranks = shard_sizes(mode, task)[-1]
    held = sum(-(-len(each) // ranks) * each.nbytes // len(each) for each in dense.parameters())
    largest = max(sum(each.nbytes for each in layer.parameters()) for layer in dense.layers)
    return 2 * held + (0 if ranks == 1 else 3 * largest) + saved_bytes(dense, inputs)


def saved_bytes(dense: nn.Module, inputs: Sequence[torch.Tensor]) -> int:
    """Bytes that the forward pass keeps for the backward pass, without parameters and inputs; all may be on meta."""
    given = {tensor.untyped_storage()._cdata for tensor in (*dense.parameters(), *inputs)}
    saved: dict[int, torch.UntypedStorage] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        saved[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        dense(*inputs)
    return sum(storage.nbytes() for key, storage in saved.items() if key not in given)


def dense_optimizer(sharded: DistributedModelParallel, params: TrainingParams) -> torch.optim.SGD:
    """The optimizer of the dense network and of replicated tables, whose gradients are dense, too."""
    model = sharded.module
    replicas = [
        weights for _, weights in in_backward_optimizer_filter(model.embedding_bag_collection.named_parameters())
    ]
    groups = [{"params": list(model.dense.parameters())}, {"params": replicas}]
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
