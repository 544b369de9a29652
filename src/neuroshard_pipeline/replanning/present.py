"""The plan that runs, and its judgement: what it costs on the task of today, and what is wrong with it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.search.cover import constraint_violations, cover_problems
from neuroshard_pipeline.search.parts import step_parts
from neuroshard_pipeline.search.plan import Plan, PlanCost
from neuroshard_pipeline.search.price import predicted_cost
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.tables.row_blocks import ranks_together, shards_together
from neuroshard_pipeline.tables.table import Shard, Table
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.tables.tiers import cuts_of, tiered_task

#: Number of tables that one sentence names.
_NAMED = 5


@dataclass(frozen=True)
class Present:
    """Shards that a job trains, and the rank of each; `source` says for messages where they were read.

    The tables are those for which the plan was made; statistics of ids may be missing. `ranks_per_host` is None if all
    ranks are on one host.
    """

    shards: tuple[Shard, ...]
    ranks: tuple[int, ...]
    world_size: int
    source: str = "the present plan"
    ranks_per_host: int | None = None

    @classmethod
    def of(cls, plan: Plan) -> Present:
        """The shards of one of our plans."""
        return cls(plan.shards, plan.ranks, plan.task.world_size, plan.task.task_id, plan.task.local_world_size)

    @cached_property
    def placed(self) -> dict[str, list[tuple[Shard, int]]]:
        """Shards and ranks by table."""
        found = defaultdict(list)
        for shard, rank in zip(self.shards, self.ranks, strict=True):
            found[shard.table.name].append((shard, rank))
        return dict(found)

    @cached_property
    def tables(self) -> dict[str, Table]:
        """The tables by name."""
        return {name: placed[0][0].table for name, placed in self.placed.items()}

    def task(self, task: ShardingTask) -> ShardingTask:
        """`task` with the tiers and compute kernels of this plan, for the tables that both have."""
        parents = {table.tier.parent for table in self.tables.values() if table.tier is not None}
        names = {table.name for table in task.tables}
        if parents & names:
            own = replace(
                task, tables=[t for t in self.tables.values() if t.tier is not None and t.tier.parent in names]
            )
            task = tiered_task(task, cuts_of(own))
        kernels = {name: (table.compute_kernel, table.cache_load_factor) for name, table in self.tables.items()}
        tables = [
            replace(table, compute_kernel=kernels[table.name][0], cache_load_factor=kernels[table.name][1])
            if table.name in kernels
            else table
            for table in task.tables
        ]
        return task if tables == list(task.tables) else replace(task, tables=tables)


@dataclass(frozen=True)
class Judgement:
    """What the plan that runs is worth for a task: what is wrong with it (`problems`, in sentences), and its cost.

    The cost (`predicted`) is without the tables that the plan does not know. `memory_bytes` are needed on every rank of
    the task, which may use `limits`. If the plan cannot run as it is, there is no cost, and `memory_bytes` is empty.
    """

    problems: tuple[str, ...]
    predicted: PlanCost | None
    memory_bytes: tuple[int, ...]
    limits: tuple[int, ...]

    @property
    def fits(self) -> bool:
        """Whether every rank has enough memory for its shards; False if the plan cannot run as it is."""
        pairs = zip(self.memory_bytes, self.limits, strict=False)
        return bool(self.memory_bytes) and all(used <= limit for used, limit in pairs)


def judge(present: Present, problem: Problem) -> Judgement:
    """Price the plan that runs for the task of `problem`, whether or not it is a valid plan of it.

    Tables that have grown keep their type: column shards get all rows, and row shards are cut again.
    """
    task = problem.task
    problems = list(table_changes(present.tables, task))
    limits = problem.memory.limits(task)
    if present.world_size != task.world_size:
        problems.append(f"it is a plan for {present.world_size} ranks, but the task has {task.world_size}")
        return Judgement(tuple(problems), None, (), limits)
    placed = [entry for table in task.tables for entry in stretched(present, table, task) or ()]
    shards, ranks = tuple(shard for shard, _ in placed), tuple(rank for _, rank in placed)
    known = {shard.table.name for shard in shards}
    own = replace(task, tables=[table for table in task.tables if table.name in known]) if known else task
    problems += [
        f"table {text}" if not text.startswith("table") else text for text in cover_problems(own, shards, ranks)
    ]
    used = tuple(problem.memory.bytes_of_ranks(shards, ranks, task).tolist())
    problems += [
        f"rank {rank} needs {need} bytes for its shards but has {limit}: {need - limit} bytes too many"
        for rank, (need, limit) in enumerate(zip(used, limits, strict=True))
        if need > limit
    ]
    if task.constraints and known == {table.name for table in task.tables}:
        problems += constraint_violations(task, shards, ranks)
    parts = step_parts(task, shards, ranks, problem.models, problem.known)
    return Judgement(tuple(problems), predicted_cost(parts, problem.models, task.batch_size), used, limits)


def stretched(present: Present, table: Table, task: ShardingTask) -> list[tuple[Shard, int]] | None:
    """The present shards of a table of the task with all rows that the table now has; None if there are none.

    A table with other columns has none, because no present shard is a shard of it.
    """
    placed = present.placed.get(table.name)
    if not placed or placed[0][0].table.embedding_dim != table.embedding_dim:
        return None
    kind = placed[0][0].sharding_type
    count, found = len(ranks_together(kind, task)[0]), list[tuple[Shard, int]]()
    firsts = [0 if kind in ("row_wise", "data_parallel") else rank // count * count for _, rank in placed]
    widths = {(shard.column_offset, at): shard.embedding_dim for (shard, _), at in zip(placed, firsts, strict=True)}
    for (column, first), width in widths.items():
        own = shards_together(Shard(table, column, width), kind, count)
        found += zip(own, range(first, first + count), strict=False)
    return found


def table_changes(there: Mapping[str, Table], task: ShardingTask) -> Iterator[str]:
    """Sentences about tables that only a plan (`there`) or only the task has, and about tables of another size."""
    here = {table.name: table for table in task.tables}
    missing, unknown = sorted(here.keys() - there.keys()), sorted(there.keys() - here.keys())
    if missing:
        yield f"it has no shards of {named(missing)}"
    if unknown:
        yield f"it has {named(unknown)}, which the task does not have"
    for name in sorted(there.keys() & here.keys()):
        old, new = there[name], here[name]
        if old.num_embeddings != new.num_embeddings:
            word = "grown" if new.num_embeddings > old.num_embeddings else "shrunk"
            yield f"table {name!r} has {word} from {old.num_embeddings:,} to {new.num_embeddings:,} rows"
        if old.embedding_dim != new.embedding_dim:
            yield f"table {name!r} had {old.embedding_dim} columns and has {new.embedding_dim} now"


def named(names: Sequence[str], what: str = "table") -> str:
    """The names of tables or other things, of many only the first ones."""
    shown = ", ".join(map(repr, names[:_NAMED]))
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"the {what}{'s' if len(names) > 1 else ''} {shown}{more}"


def require_some(present: Present, task: ShardingTask) -> None:
    """Refuse a plan that shares no table with the task.

    Raises:
        PlanError: no table of the plan is in the task.
    """
    if not present.tables.keys() & {table.name for table in task.tables}:
        raise PlanError(
            f"{present.source} has none of the tables of {task.task_id}; its first ones are "
            f"{named(sorted(present.tables))}: give the plan of this model"
        )
