"""Reads the plan that runs: this project's JSON documents, TorchRec's plans, and sharded modules."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.replanning.present import Present
from neuroshard_pipeline.search.plan import Plan
from neuroshard_pipeline.tables.table import Table
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.torchrec_bridge.plan_json import is_document, plan_from_json, read_document


def read_plan(source: Any, task: ShardingTask, world_size: int | None = None) -> Present:
    """The plan that runs.

    Args:
        source: a `Plan`; a document of `plan_to_json`, or the path of one; TorchRec's `ShardingPlan`; or a module that
            `DistributedModelParallel` has sharded, in the process of any rank.
        task: the task as it is now. It gives what a source does not say: rows and columns of replicas, statistics.
        world_size: number of ranks of the job; None for the number in the source, or the ranks that its shards are on.

    Raises:
        PlanError: the source is of another kind, cannot be read, or lacks the plan of a module; the message names it.
    """
    if isinstance(source, Plan):
        return Present.of(source)
    if is_document(source):
        return Present.of(plan_from_json(read_document(source)))
    from neuroshard_pipeline.torchrec_plan.extra import require_torchrec

    require_torchrec()
    from torch import nn
    from torchrec.distributed.types import ShardingPlan

    if isinstance(source, nn.Module):
        return _of_module(source, task)
    if isinstance(source, ShardingPlan):
        return _of_torchrec(source, {table.name: table for table in task.tables}, world_size, "TorchRec's plan")
    raise PlanError(
        f"{source!r:.60} is not a plan; give a Plan, the path of a JSON plan document, TorchRec's ShardingPlan, or a "
        "module sharded with DistributedModelParallel"
    )


def _of_module(module: Any, task: ShardingTask) -> Present:
    """The plan of a sharded module; its embedding modules that are not sharded are named in an error."""
    from torchrec.distributed.types import ShardedModule
    from torchrec.modules.embedding_modules import EmbeddingBagCollection, EmbeddingCollection

    from neuroshard_pipeline.torchrec_plan.left_out import configs_of

    plan, env = getattr(module, "plan", None), getattr(module, "_env", None)
    if plan is None or env is None:
        raise PlanError(f"the {type(module).__name__} is not sharded; give what DistributedModelParallel returned")
    bare = [
        path
        for path, child in _outermost(module.module, (ShardedModule, EmbeddingBagCollection, EmbeddingCollection))
        if not isinstance(child, ShardedModule) or path not in plan.plan
    ]
    if bare:
        raise PlanError(f"the embedding modules {', '.join(map(repr, bare))} have no plan; shard them, too")
    tables = {table.name: table for table in task.tables}
    for _, child in _outermost(module.module, (ShardedModule,)):
        for config in configs_of(child):
            tables[config.name] = _sized(tables, config.name, config.num_embeddings, config.embedding_dim)
    return _of_torchrec(plan, tables, env.world_size, f"the plan of the {type(module.module).__name__}")


def _outermost(module: Any, kinds: tuple[type, ...], path: str = "") -> Iterator[tuple[str, Any]]:
    """Names and modules of these kinds that lie in no other module of these kinds."""
    for name, child in module.named_children():
        where = f"{path}.{name}" if path else name
        if isinstance(child, kinds):
            yield where.replace("_dmp_wrapped_module.", "").removeprefix("module."), child
        else:
            yield from _outermost(child, kinds, where)


def _of_torchrec(plan: Any, known: Mapping[str, Table], world_size: int | None, source: str) -> Present:
    from neuroshard_pipeline.torchrec_plan.structures import read_sharding_plan

    tables, ranks = dict(known), set[int]()
    for path, module in plan.plan.items():
        for name, parameter in module.items():
            spec = parameter.sharding_spec
            ranks |= {*(parameter.ranks or ())}
            if spec is not None:
                ends = [max(s.shard_offsets[axis] + s.shard_sizes[axis] for s in spec.shards) for axis in (0, 1)]
                tables[name] = _sized(known, name, *ends)
            elif name not in tables:
                raise PlanError(f"{source}: table {name!r} of {path!r} is a replica without a size; add it to the task")
    shards, placed = read_sharding_plan(plan, tables)
    return Present(shards, placed, world_size or _world_size(ranks, source), source)


def _world_size(ranks: Collection[int], source: str) -> int:
    if not ranks:
        raise PlanError(f"{source} holds no shards")
    return max(ranks) + 1


def _sized(known: Mapping[str, Table], name: str, rows: int, columns: int) -> Table:
    """A table of this size, with the kernel and data type of the known table of this name."""
    of = known.get(name)
    if of is not None and (of.num_embeddings, of.embedding_dim) == (rows, columns):
        return of
    return Table(name, rows, columns, 1.0, data_type="fp32" if of is None else of.data_type)
