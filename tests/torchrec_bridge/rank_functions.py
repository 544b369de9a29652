"""Functions that ranks run in the tests, in a separate module that the processes of the ranks can import."""

from __future__ import annotations

import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile
from torchrec.distributed.planner import ParameterConstraints
from torchrec_bridge import training

from neuroshard_pipeline.errors import NeuroShardError


def losses_under_plans(rank: int, world_size: int, steps: int) -> dict[str, list[tuple[float, float]]]:
    """For every plan of `training.plans_to_train`, losses per step, sharded and unsharded."""
    losses = {}
    for name, (kind, plan) in training.plans_to_train(world_size).items():
        model = training.built(kind)
        sharding_plan = plan.to_torchrec(model, training.HOSTS[world_size], "cpu")
        losses[name] = training.train_both(rank, world_size, model, sharding_plan, steps)
    return losses


def losses_under_planner(rank: int, world_size: int, kind: str, steps: int) -> tuple[list[tuple[float, float]], int]:
    """Losses per step under the plan of `collective_plan`, and the number of additional shards from splits."""
    model = training.built(kind)
    planner = training.planner(model, world_size)
    plan = planner.collective_plan(model)
    shards = sum(len(table.ranks) for module in plan.plan.values() for table in module.values())
    tables = sum(len(module) for module in plan.plan.values())
    return training.train_both(rank, world_size, model, plan, steps), shards - tables


def collective_plan_errors(rank: int, world_size: int, cases: list[str]) -> list[tuple[str, str]]:
    """Class and message of the error that this rank raises in each case."""
    errors = []
    for case in cases:
        try:
            _plan_that_fails(rank, world_size, case)
        except NeuroShardError as error:
            errors.append((type(error).__name__, str(error)))
    return errors


def _plan_that_fails(rank: int, world_size: int, case: str) -> None:
    model = training.built("several_collections")
    planner = training.planner(model, world_size)
    if case == "no room on the first rank" and rank == 0:
        planner = training.planner(model, world_size, memory_bytes=1000)
    if case == "table missing on the last rank" and rank == world_size - 1:
        del model.mean
    if case == "bad constraint on the last rank" and rank == world_size - 1:
        planner.constraints = {"nowhere": ParameterConstraints()}
    if case == "more ranks than the process group":
        planner = training.planner(model, 2 * world_size)
    planner.collective_plan(model)


def subgroup_plan(rank: int, world_size: int) -> list[str]:
    """Placements of a plan that the last two ranks make in a group without the others."""
    group = dist.new_group([world_size - 2, world_size - 1])
    if rank < world_size - 2:
        return []
    model = training.built("several_collections")
    plan = training.planner(model, 2).collective_plan(model, pg=group)
    tables = [table for module in plan.plan.values() for table in module.values()]
    return [str(shard.placement) for table in tables for shard in table.sharding_spec.shards]


def counted_operations(rank: int, world_size: int, unsplit: str) -> dict[str, int]:
    """Numbers of fused lookups and all-to-alls of one training step."""
    model = training.built("dlrm")
    plan = training.random_plan(model, world_size).to_torchrec(model, compute_device="cpu")
    for module in plan.plan.values():
        for table in module.values():
            table.sharding_type = unsplit if len(table.ranks) == 1 else "column_wise"
    part = slice(rank * training.LOCAL_BATCH, (rank + 1) * training.LOCAL_BATCH)
    batch = training.Batches(model, world_size).draw(0, part)
    sharded = training.sharded(model, plan)
    training.losses_of(sharded, batch).mean().backward()
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        training.losses_of(sharded, batch).mean().backward()
    counts = {event.key: event.count for event in profiled.key_averages()}
    return {
        "lookups": counts["fbgemm::split_embedding_codegen_forward_cpu"],
        "all_to_alls": counts["gloo:all_to_all"],
    }
