"""TorchRec's own planner as a sharder. It imports TorchRec, an optional extra, on first use."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from neuroshard_pipeline.errors import ConstraintError, DoesNotFitError, memory_text
from neuroshard_pipeline.search.host_memory import kernel_choices
from neuroshard_pipeline.search.plan import Placement
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.search.room import require_room
from neuroshard_pipeline.sharders.perf_fit import Cluster, fit_numbers, shard_sets
from neuroshard_pipeline.sharders.usable_types import usable_types
from neuroshard_pipeline.tables.constraints import TABLE_WISE
from neuroshard_pipeline.tables.table import COLUMN_GRANULARITY, Shard, Table
from neuroshard_pipeline.tables.task import ShardingTask

#: Largest number of ranks that TorchRec's planner is asked for: 10 tables on 1,000 ranks took it a minute.
_MOST_RANKS = 2**10


@dataclass(frozen=True)
class TorchRecSharder:
    """TorchRec's `EmbeddingShardingPlanner` for GPUs, under the memory limits of the task.

    TorchRec compares plans by its own cost formulas, unless `options` give another estimator. Two settings make its
    plans comparable with the plans of other sharders. Its storage estimates come from the memory model that all
    sharders use. `min_partition` allows it to cut tables into shards of fewer than 128 columns, which it never does by
    default. TorchRec needs to be told the number of equal shards of a split table. The sharder therefore tries halves
    first, then quarters and so on, until a plan fits. The sharder is deterministic.

    The planner chooses among table_wise, column_wise, row_wise, table_row_wise, grid_shard and data_parallel, as far
    as `usable_types` allows them: without a step cost model, among the first two only. It never gets table_column_wise.
    If the task has host memory, it may put tables there, with and without a cache of TorchRec's default size.

    Attributes:
        name: the name of the sharder.
        is_fitted: whether the numbers of TorchRec's cost formulas are fitted to the cost models, for the tables of the
            task. The planner then places the most expensive tables first, not the largest ones, which lowers the costs.
        options: other arguments of `stock_planner.stock_plan`; without them, TorchRec's defaults apply.
    """

    name: str = "torchrec"
    is_fitted: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def shard(self, problem: Problem, rng: np.random.Generator) -> Placement:  # noqa: ARG002
        """The placement that TorchRec's planner estimates to be fastest.

        Raises:
            ConstraintError: the task has constraints that TorchRec's planner does not know, or a table has no usable
                type.
            TorchRecMissingError: the extra `torchrec` is not installed.
            DoesNotFitError: TorchRec found no plan within the memory limits, or the task has too many ranks.
        """
        task, memory = problem.task, problem.memory
        require_room(task, "TorchRec's planner", most_ranks=_MOST_RANKS)
        for hindrance in _hindrances(task):
            raise ConstraintError(f"{task.task_id}: the sharder {self.name!r} cannot respect {hindrance}")
        from neuroshard_pipeline.torchrec_plan.stock_planner import PlannerError

        options = {**(_fitted_options(problem) if self.is_fitted and task.world_size > 1 else {}), **self.options}
        widest, num_parts = max(table.embedding_dim for table in task.tables), 2
        while True:
            try:
                return self.attempt(problem, num_parts, **options)[0]
            except PlannerError as error:
                if COLUMN_GRANULARITY * num_parts >= widest:
                    limit, message = memory_text(max(memory.limits(task))), " ".join(str(error).split())
                    raise DoesNotFitError(
                        f"{task.task_id}: TorchRec's planner found no plan for ranks of at most {limit}: {message}"
                    ) from error
                num_parts *= 2

    def attempt(self, problem: Problem, num_parts: int, **options: Any) -> tuple[Placement, float]:
        """The placement of one run of TorchRec's planner, and its rating by TorchRec.

        A table may be cut into `num_parts` column blocks. The options are arguments of `stock_planner.stock_plan`.

        Raises:
            stock_planner.PlannerError: TorchRec found no plan.
        """
        from neuroshard_pipeline.torchrec_plan.stock_planner import TableChoice, stock_plan
        from neuroshard_pipeline.torchrec_plan.structures import read_sharding_plan

        # TorchRec registers every table as a PyTorch module, and PyTorch refuses names such as `user.id` or `keys`.
        task = problem.task
        tables = {f"table_{index}": table for index, table in enumerate(task.tables)}
        choices = {}
        for (name, table), kernels in zip(tables.items(), kernel_choices(task), strict=True):
            types = _torchrec_types(table, problem)
            choices[name] = TableChoice(table, types, _least_width(table, task, num_parts), kernels)
        plan, rating = stock_plan(task, choices, problem.memory.limits(task), problem.memory, **options)
        return _placement(task, *read_sharding_plan(plan, tables)), rating


def _fitted_options(problem: Problem) -> dict[str, Any]:
    """Arguments of `stock_plan` with which TorchRec's formulas have numbers that are fitted to the cost models."""
    from neuroshard_pipeline.torchrec_plan.perf_config import FittedPerfConfig
    from neuroshard_pipeline.torchrec_plan.stock_planner import GreedyPerfPartitioner, SortBy, topology_of

    task, models = problem.task, problem.models
    cluster = Cluster(task.world_size, task.ranks_per_host, task.batch_size, task.optimizer)
    numbers = fit_numbers(models, cluster, shard_sets(task.tables, task.batch_size, task.world_size))
    config = FittedPerfConfig(numbers, topology_of(task, problem.memory.limits(task)))
    return {"make_estimator": config.estimator, "partitioner": GreedyPerfPartitioner(SortBy.PERF)}


def _placement(task: ShardingTask, shards: tuple[Shard, ...], ranks: tuple[int, ...]) -> Placement:
    """The placement of a plan of TorchRec's planner, which may have moved tables to host memory."""
    changed = {shard.table.name: shard.table for shard in shards}
    tables = tuple(changed[table.name] for table in task.tables)
    return Placement(shards, ranks, None if tables == task.tables else replace(task, tables=tables))


def _hindrances(task: ShardingTask) -> Iterator[str]:
    """Constraints of the task that TorchRec's planner cannot keep."""
    remedy = "because TorchRec's planner knows no such constraint; use another sharder"
    for table in task.tables if task.constraints else ():
        own = task.constraints.of(table.name)
        if own.ranks is not None or own.forbidden_ranks:
            yield f"constraints on ranks, as of table {table.name!r}, {remedy}"
        if task.constraints.is_grouped(table.name):
            yield f"that tables are kept together, as table {table.name!r} with others, {remedy}"


def _torchrec_types(table: Table, problem: Problem) -> tuple[str, ...]:
    """TorchRec's names of the types that the table may have."""
    types: list[str] = [*usable_types(table, problem)]
    if "column_wise" in types:
        types.append(TABLE_WISE)
        if problem.task.constraints.of(table.name).max_shards == 1:
            types.remove("column_wise")
    return tuple(types)


def _least_width(table: Table, task: ShardingTask, num_parts: int) -> int:
    """Fewest columns of a block if a table is cut into about `num_parts` column blocks, as far as constraints allow."""
    own = task.constraints.of(table.name)
    parts = min(num_parts, own.max_shards or num_parts)
    return max(COLUMN_GRANULARITY, min(own.min_width, table.embedding_dim), -(-table.embedding_dim // parts))
