"""What-ifs: changes of a task, what they cost, and the TorchRec setting that turns each of them on."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from neuroshard_pipeline.cost_models import CostModels, load_cost_models
from neuroshard_pipeline.cost_models.shipped import shipped_names
from neuroshard_pipeline.search.models import device_of
from neuroshard_pipeline.tables.constraints import UNCONSTRAINED
from neuroshard_pipeline.tables.lookups import bin_transitions, local_table
from neuroshard_pipeline.tables.profile import is_assumed, with_profile
from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.tables.task import ShardingTask

#: Steps between two averages of the weights of replica groups.
_SYNC_INTERVAL = 100
_GIB = 2**30


def _same(today: Any) -> Any:
    return today


@dataclass(frozen=True, eq=False)
class WhatIf:
    """A change of a task, by its name in words; two what-ifs of one topic exclude each other.

    Attributes:
        change: makes the changed task; raises `TaskError` if it is impossible.
        costs: what it costs, in words.
        setting: how TorchRec or its trainer turns it on; empty if no setting does.
        changes_model: whether the trained model differs, so that its quality may, too.
        models: makes the cost models of the changed task from those of today.
        given_up: columns, MiB or ids per sample that tables lose; 0 if they lose nothing.
    """

    name: str
    topic: str
    change: Callable[[ShardingTask], ShardingTask] = _same
    costs: str = ""
    setting: str = ""
    changes_model: bool = False
    models: Callable[[CostModels], CostModels] = _same
    given_up: float = 0.0


def what_ifs(task: ShardingTask, models: CostModels) -> Iterator[WhatIf]:
    """The what-ifs that leave the tables of a task as they are."""
    is_cuda = device_of(models.compute) == "cuda"
    if task.world_size > 1:
        yield from _of_links(task)
    yield from _of_memory(task, is_cuda)
    yield from _of_ranks(task, is_cuda)
    for factor in (2.0, 0.5):
        size = round(task.batch_size * factor)
        costs, setting = "tuning of the learning rate", f"DataLoader(batch_size={size // task.world_size})"
        yield WhatIf(f"batch size {size}", "batch", partial(with_batch, factor=factor), costs, setting, True)
    if task.world_size > 1:
        costs = "another network; the exchange of ids keeps its price"
        yield WhatIf("links of twice the bandwidth", "links", costs=costs, models=with_faster_links)
    today = str((models.compute.provenance.get("hardware") or {}).get("gpu_model", "today's GPU")).split(" ")[0]
    for name in shipped_names() if is_cuda else ():
        if name != today:
            yield WhatIf(f"{name} in place of {today}", "device", costs="other GPUs", models=partial(_loaded, name))


def _with(**fields: Any) -> Callable[[ShardingTask], ShardingTask]:
    return lambda task: replace(task, **fields)


def _of_links(task: ShardingTask) -> Iterator[WhatIf]:
    """What-ifs about what ranks send, and when."""
    if task.comm_share == 1:
        costs = "rows and gradients are rounded to half precision on the links"
        setting = "torchrec_sharders('fp16'), or a qcomm_codecs_registry with CommType.FP16 or BF16"
        yield WhatIf("half-precision communication", "precision", _with(comm_precision="fp16"), costs, setting)
    if not task.pipelines_input_dist:
        costs, setting = "memory for the ids of another batch", "TrainPipelineSparseDist(model, optimizer, device)"
        yield WhatIf("pipelined input dist", "pipeline", _with(pipelines_input_dist=True), costs, setting)
    has_sequences = any(table.pooling == "none" for table in task.tables)
    if has_sequences and not task.index_dedup:
        costs, setting = "a search for repetitions", "EmbeddingCollectionSharder(use_index_dedup=True)"
        yield WhatIf("removal of repeated ids", "dedup", _with(index_dedup=True), costs, setting)
    if has_sequences and not task.tiers:
        costs, setting = "copies of popular rows", "PlannerOptions(tiers=True), torchrec_bridge.tiered.put_tiers"
        yield WhatIf("tiers of popular rows", "tiers", _with(tiers=True), costs, setting)


def _of_memory(task: ShardingTask, is_cuda: bool) -> Iterator[WhatIf]:
    """What-ifs about memory and constraints."""
    limits = tuple(limit * 3 // 2 for limit in task.memory_limits)
    costs, setting = f"{max(limits) / 3 / _GIB:.3g} GiB per rank", f"Topology(hbm_cap={max(limits)})"
    yield WhatIf("half as much memory again", "memory", _with(memory_bytes=limits), costs, setting)
    if task.host_memory_bytes is None and is_cuda:
        host = 2 * max(task.memory_limits)
        costs = f"at most {host / _GIB:.3g} GiB of host memory per rank"
        yield WhatIf("tables in host memory", "host", _with(host_memory_bytes=host), costs, f"Topology(ddr_cap={host})")
    if task.constraints:
        costs, setting = "what the constraints are for", "no ParameterConstraints"
        yield WhatIf("no constraints", "constraints", _with(constraints=UNCONSTRAINED), costs, setting)


def _of_ranks(task: ShardingTask, is_cuda: bool) -> Iterator[WhatIf]:
    """What-ifs about ranks and replica groups."""
    world = task.world_size
    for ranks in (2 * world, world // 2) if world % 2 == 0 else (2 * world,):
        costs = f"{world} more ranks" if ranks > world else f"nothing; {world - ranks} fewer ranks"
        yield WhatIf(f"world_size {ranks}", "ranks", partial(_on_ranks, ranks), costs, f"world_size={ranks}")
    if world % 2:
        return
    if is_cuda and task.num_replica_groups == 1 and task.optimizer != "adam":
        costs = f"twice the memory for tables; groups average their weights only every {_SYNC_INTERVAL} steps"
        setting = f"DMPCollection(world_size={world}, sharding_group_size={world // 2})"
        yield WhatIf(f"2 replica groups of {world // 2} ranks", "ranks", _in_groups, costs, setting, True)


def _loaded(name: str, today: CostModels) -> CostModels:  # noqa: ARG001
    return load_cost_models(name)


def with_faster_links(models: CostModels, speed: float = 2.0) -> CostModels:
    """Cost models whose all-to-alls and reductions take as long for x bytes as those of today for x / speed bytes."""
    step, comm = models.step, replace(models.comm, bandwidth=models.comm.bandwidth * speed)
    if step is None:
        return replace(models, comm=comm)
    curves = {
        collective: {group: replace(curve, size_bytes=curve.size_bytes * speed) for group, curve in of.items()}
        for collective, of in step.reductions.curves.items()
    }
    return replace(models, comm=comm, step=replace(step, reductions=replace(step.reductions, curves=curves)))


def _on_ranks(world: int, task: ShardingTask) -> ShardingTask:
    """The task on `world` ranks, each with the least memory of today's ranks."""
    local = task.local_world_size
    local = None if local is None or world % local else local
    return replace(task, world_size=world, local_world_size=local, memory_bytes=min(task.memory_limits))


def _in_groups(task: ShardingTask) -> ShardingTask:
    """Half of the ranks, with half of the batch, as one of two groups."""
    halved = with_batch(_on_ranks(task.world_size // 2, task), 0.5)
    return replace(halved, num_replica_groups=2, sync_interval=_SYNC_INTERVAL)


def with_batch(task: ShardingTask, factor: float) -> ShardingTask:
    """The task with `factor` times as many samples per batch, and with the reuse profiles of such batches."""
    size = max(1, round(task.batch_size * factor))
    tables = [_in_batch(table, task.batch_size, size, factor) for table in task.tables]
    return replace(task, batch_size=size, tables=tables)


def _in_batch(table: Table, before: int, after: int, factor: float) -> Table:
    """A table with the profile of `after` samples; a larger batch is one of which a part has today's profile."""
    if is_assumed(table):
        return with_profile(replace(table, unique_rows=None, reuse=None, has_assumed_profile=False), after)
    if factor <= 1:
        return local_table(table, before, 1.0 / factor)
    from scipy.optimize import nnls  # imported late: this takes a third of a second

    rows = nnls(bin_transitions(factor).T, np.array(table.reuse) * (table.unique_rows or 1.0))[0]
    unique_rows = float(min(rows.sum(), table.num_embeddings))
    return replace(table, unique_rows=unique_rows, reuse=tuple((rows / rows.sum()).tolist()))
