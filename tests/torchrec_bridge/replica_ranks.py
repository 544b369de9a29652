"""Ranks that communicate in half precision, or are in replica groups, and train beside the unsharded model."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torchrec.distributed import DistributedModelParallel, model_parallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.fbgemm_qcomm_codec import CommType, QCommsConfig, get_qcomm_codecs_registry
from torchrec.distributed.model_parallel import DMPCollection
from torchrec.optim.optimizers import in_backward_optimizer_filter
from torchrec_bridge import drawn_plans, trained_models, training
from torchrec_bridge.rank_functions import recorded_collectives

from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.torchrec_plan.comm_precision import torchrec_sharders

KIND = "several_collections"
TYPES = ["column_wise", "row_wise", "data_parallel"]
CPU = torch.device("cpu")

Losses = list[tuple[float, float]]


def mixed_sharder() -> EmbeddingBagCollectionSharder:
    """A sharder that sends rows in fp16 and their gradients in bf16."""
    codecs = get_qcomm_codecs_registry(QCommsConfig(CommType.FP16, CommType.BF16))
    return EmbeddingBagCollectionSharder(qcomm_codecs_registry=codecs)


def losses_in_precision(rank: int, world_size: int, precision: str, steps: int) -> tuple[Losses, float]:
    """Losses of the sharded and of the unsharded model in every step, and the largest difference of final weights."""
    model = trained_models.built(KIND)
    plan = drawn_plans.plan_of_types(model, world_size, world_size, TYPES)
    return _losses(rank, world_size, _in_precision(model, plan, precision), steps)


def _in_precision(model: nn.Module, plan: Plan, precision: str) -> DistributedModelParallel:
    sharders, sharding_plan = torchrec_sharders(precision, "cpu"), plan.to_torchrec(model, compute_device="cpu")
    return DistributedModelParallel(model, device=CPU, plan=sharding_plan, sharders=sharders)


def recorded_in_precision(rank: int, world_size: int, precision: str) -> list[tuple[str, int, int, str]]:
    """The collectives of one step under `pooled_plan`, as `recorded_collectives` lists them."""
    model = trained_models.built("dlrm")
    batch = training.drawn("dlrm", world_size, 0, rank)
    sharded = _in_precision(model, pooled_plan(world_size), precision)
    training.losses_of(sharded, batch).mean().backward()  # creates buffers and groups
    with recorded_collectives() as calls:
        training.losses_of(sharded, batch).mean().backward()
    return list(calls)


def pooled_plan(world_size: int) -> Plan:
    """A plan with column and row shards and replicas of pooled tables that have one feature each."""
    return drawn_plans.plan_of_types(trained_models.built("dlrm"), world_size, world_size, TYPES)


def losses_in_replica_groups(rank: int, world_size: int, interval: int, steps: int) -> tuple[Losses, float]:
    """As `losses_in_precision`, for two replica groups in fp32 that average their weights every `interval` steps."""
    model = trained_models.built(KIND)
    plan = drawn_plans.plan_of_types(model, world_size // 2, world_size // 2, TYPES)
    sharded = _cpu_collection()(
        model,
        device=CPU,
        plan=plan.to_torchrec(model, compute_device="cpu"),
        world_size=world_size,
        sharding_group_size=world_size // 2,
        global_pg=dist.group.WORLD,
        sharders=torchrec_sharders(device="cpu"),
        custom_all_reduce=lambda tensors: _average(tensors, sharded),
    )

    def after_step(step: int) -> None:
        if step % interval == interval - 1:
            sharded.sync()

    return _losses(rank, world_size, sharded, steps, after_step)


def _average(tensors: list[torch.Tensor], sharded: DMPCollection) -> None:
    """Average tensors over the replica groups; gloo has no all_reduce of means."""
    group = sharded.device_mesh.get_group("replicate")
    for tensor in tensors:
        dist.all_reduce(tensor, group=group)
        tensor /= dist.get_world_size(group)


def _cpu_collection() -> type[DMPCollection]:
    """TorchRec's class without its two obstacles on CPUs: it asserts a GPU, and gives shards a numbered CPU."""
    tree = ast.parse(inspect.getsource(DMPCollection))
    namespace: dict[str, Any] = dict(vars(model_parallel))
    exec(compile(tree, model_parallel.__file__, "exec", optimize=1), namespace)  # without assertions
    collection: type[DMPCollection] = namespace["DMPCollection"]

    class CpuCollection(collection):  # type: ignore[valid-type,misc]
        def _remap_sharding_plan(self, plan: Any, **names: Any) -> None:
            super()._remap_sharding_plan(plan=plan, **names)
            for of_module in plan.plan.values():
                for sharding in of_module.values():
                    for shard in sharding.sharding_spec.shards if sharding.sharding_spec else []:
                        rank = shard.placement.rank()
                        shard.placement = torch.distributed._remote_device(f"rank:{rank}/cpu")

    return CpuCollection


def _losses(
    rank: int, world_size: int, sharded: nn.Module, steps: int, after_step: Callable[[int], None] = lambda _: None
) -> tuple[Losses, float]:
    whole = trained_models.built(KIND)
    batches, weights = trained_models.Batches(whole, world_size), whole.state_dict()
    for shard, original in training.pairs(sharded, weights):
        shard.copy_(original)
    dense = [parameter for _, parameter in in_backward_optimizer_filter(sharded.named_parameters())]
    optimizers = [torch.optim.SGD(of, lr=trained_models.LEARNING_RATE) for of in (dense, whole.parameters())]
    part = slice(rank * trained_models.LOCAL_BATCH, (rank + 1) * trained_models.LOCAL_BATCH)
    losses = []
    for step in range(steps):
        mine = training.losses_of(sharded, batches.draw(step, part))
        everything = training.losses_of(whole, batches.draw(step, slice(0, batches.samples)))
        losses.append((mine.mean().item(), everything[part].mean().item()))
        for loss, optimizer in zip((mine, everything), optimizers, strict=True):
            optimizer.zero_grad()
            loss.mean().backward()
            optimizer.step()
        after_step(step)
    return losses, max(float((shard - original).abs().max()) for shard, original in training.pairs(sharded, weights))
