"""The sharding types among which sharders may choose for a table."""

from neuroshard_pipeline.errors import ConstraintError
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.tables.constraints import no_type_left, type_hindrances
from neuroshard_pipeline.tables.row_blocks import last_rank_has_rows
from neuroshard_pipeline.tables.table import ShardingType, Table


def usable_types(table: Table, problem: Problem) -> tuple[ShardingType, ...]:
    """The types that constraints allow for a table, that TorchRec can train, and that the cost models can price.

    - Cost models without a step cost model price `column_wise` tables only.
    - Types that cut rows are left out if a rank would get no rows, because TorchRec cannot train such a table on CPUs.
      This rule holds for plans of GPUs, too.
    - If all ranks are on one host, `table_row_wise`, `grid_shard` and `host_row_wise` are left out. They would then cut
      a table like `row_wise`, but every type that occurs in a plan adds kernels and collectives of its own.
    - A single rank has every table whole, whatever its type, so only `column_wise` is left if the table may have it.
      Steps of TorchRec under replicas on one CPU took 2 % more on average over 8 tasks of 1 to 18 tables (0.4 to 2.2
      times as long), and ten times as long for 10 tables of 100,000 rows, because of their dense gradients.

    Raises:
        ConstraintError: no type is left; the message names the reason for each type, and the remedy.
    """
    task = problem.task
    usable = tuple(name for name in task.possible_types(table) if not _hindrance(name, table, problem))
    if task.world_size == 1 and "column_wise" in usable:
        return ("column_wise",)
    if usable:
        return usable
    hindrances = type_hindrances(task.constraints, table, task.world_size, task.ranks_per_host)
    reasons = {name: why or _hindrance(name, table, problem) for name, why in hindrances.items()}
    raise ConstraintError(f"{task.task_id}: {task.constraints.where}{no_type_left(task.constraints, table, reasons)}")


def _hindrance(name: ShardingType, table: Table, problem: Problem) -> str:
    """Why a table that can have a type is not given it; empty if it may be."""
    task, rows = problem.task, table.num_embeddings
    if name == "column_wise":
        return ""
    if problem.models.step is None:
        return "its price needs a step cost model, which kedro run --pipeline pretrain trains"
    if name == "data_parallel":
        return ""
    if name != "row_wise" and task.num_hosts == 1:
        return "it needs several hosts, but local_world_size puts all ranks on one"
    ranks = task.world_size if name == "row_wise" else task.ranks_per_host
    return "" if last_rank_has_rows(rows, ranks) else f"at least one of {ranks} ranks would get none of its {rows} rows"
