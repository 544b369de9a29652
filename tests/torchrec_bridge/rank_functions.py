"""Functions that ranks run in the tests, in a separate module that the processes of the ranks can import."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile
from torchrec.distributed.planner import ParameterConstraints
from torchrec_bridge import drawn_plans, trained_models, training

from neuroshard_pipeline.errors import NeuroShardError, PlanError
from neuroshard_pipeline.torchrec_bridge import planner as bridge_planner

#: Name, number of ranks, number of elements and element type of a collective.
Call = tuple[str, int, int, str]
#: Sharded and unsharded, in every step.
Losses = list[tuple[float, float]]


def trained_under_plans(rank: int, world_size: int, steps: int) -> dict[str, tuple[Losses, list[Call]]]:
    """For every plan of `plans_to_train`, losses per step, sharded and unsharded, and the collectives of a step.

    These are the collectives of the last step, as `recorded_collectives` lists them. An all-to-all has the elements
    that this rank sends, any other collective those of the larger of its two buffers. TorchRec passes outputs before
    inputs.
    """
    found = {}
    for name, (kind, plan) in drawn_plans.plans_to_train(world_size).items():
        model = trained_models.built(kind)
        sharding_plan = plan.to_torchrec(model, drawn_plans.HOSTS[world_size], "cpu")
        found[name] = training.train_both(rank, world_size, kind, sharding_plan, steps, recorded_collectives())
    return found


def losses_under_planner(rank: int, world_size: int, kind: str, steps: int) -> tuple[Losses, dict[str, str]]:
    """Losses per step under the plan of `collective_plan`, and type, ranks and shards of every table, as text."""
    model = trained_models.built(kind)
    planner = drawn_plans.planner(model, world_size)
    plan = planner.collective_plan(model)
    placed = {name: str(table) for module in plan.plan.values() for name, table in module.items()}
    return training.train_both(rank, world_size, kind, plan, steps, contextlib.nullcontext())[0], placed


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
    model = trained_models.built("several_collections")
    planner = drawn_plans.planner(model, world_size)
    if case == "no room on the first rank" and rank == 0:
        planner = drawn_plans.planner(model, world_size, memory_bytes=1000)
    if case == "table missing on the last rank" and rank == world_size - 1:
        del model.mean
    if case == "bad constraint on the last rank" and rank == world_size - 1:
        planner.constraints = {"nowhere": ParameterConstraints()}
    if case == "more ranks than the process group":
        planner = drawn_plans.planner(model, 2 * world_size)
    with pytest.MonkeyPatch.context() as patch:
        if case == "other hosts on the last rank" and rank == world_size - 1:
            patch.setattr(bridge_planner, "check_hosts", _refuse_hosts)
        planner.collective_plan(model)


def _refuse_hosts(*_: object) -> None:
    raise PlanError("other hosts")


def subgroup_plan(rank: int, world_size: int) -> list[str]:
    """Placements of a plan that the last two ranks make in a group without the others."""
    group = dist.new_group([world_size - 2, world_size - 1])
    if rank < world_size - 2:
        return []
    model = trained_models.built("several_collections")
    plan = drawn_plans.planner(model, 2).collective_plan(model, pg=group)
    tables = [table for module in plan.plan.values() for table in module.values()]
    return [str(shard.placement) for table in tables for shard in table.sharding_spec.shards]


@contextlib.contextmanager
def recorded_collectives() -> Iterator[list[Call]]:
    """Calls of `all_to_all_single` and `_OTHERS` inside the block; DistributedDataParallel's all_reduce is in C++."""
    calls: list[Call] = []
    originals = {name: getattr(dist, name) for name in ("all_to_all_single", *_OTHERS)}

    def recording(name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            output, sent = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor)]
            elements = sent.numel() if name == "all_to_all_single" else max(output.numel(), sent.numel())
            calls.append((name, dist.get_world_size(kwargs.get("group")), elements, str(sent.dtype)))
            return originals[name](*args, **kwargs)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in originals:
            patch.setattr(dist, name, recording(name))
        yield calls


_OTHERS = ("reduce_scatter_tensor", "all_gather_into_tensor")


def counted_operations(rank: int, world_size: int, unsplit: str) -> dict[str, int]:
    """Numbers of fused lookups and all-to-alls of one training step."""
    model = trained_models.built("dlrm")
    plan = drawn_plans.random_plan(model, world_size).to_torchrec(model, compute_device="cpu")
    for module in plan.plan.values():
        for table in module.values():
            table.sharding_type = unsplit if len(table.ranks) == 1 else "column_wise"
    batch = training.drawn("dlrm", world_size, 0, rank)
    sharded = training.sharded(model, plan)
    training.losses_of(sharded, batch).mean().backward()
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        training.losses_of(sharded, batch).mean().backward()
    counts = {event.key: event.count for event in profiled.key_averages()}
    return {
        "lookups": counts["fbgemm::split_embedding_codegen_forward_cpu"],
        "all_to_alls": counts["gloo:all_to_all"],
    }
