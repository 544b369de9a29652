"""The sharding types among which sharders may choose for a table."""

from neuroshard_pipeline.errors import ConstraintError
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.tables.row_blocks import last_rank_has_rows
from neuroshard_pipeline.tables.table import ShardingType, Table


def usable_types(table: Table, problem: Problem) -> tuple[ShardingType, ...]:
    """The types that constraints allow for a table, that TorchRec can train, and that the cost models can price.

    - Cost models without a step cost model price `column_wise` tables only.
    - TorchRec may compute wrong outputs if rows of tables with mean pooling are cut (see `torchrec_plan.writer`).
    - Types that cut rows are left out if a rank would get no rows, because TorchRec cannot train such a table on CPUs.
      This rule holds for plans of GPUs, too.
    - If all ranks are on one host, `table_row_wise`, `grid_shard` and `host_row_wise` are left out. They would then cut
      a table like `row_wise`, but every type that occurs in a plan adds kernels and collectives of its own.

    Raises:
        ConstraintError: no type is left; the message names the remedy.
    """
    task = problem.task
    ranks = {"row_wise": task.world_size}
    if task.num_hosts > 1:
        ranks |= dict.fromkeys(("table_row_wise", "grid_shard", "host_row_wise"), task.ranks_per_host)

    def is_usable(name: ShardingType) -> bool:
        if name == "column_wise" or problem.models.step is None:
            return name == "column_wise"
        if name == "data_parallel":
            return True
        return name in ranks and table.pooling != "mean" and last_rank_has_rows(table.num_embeddings, ranks[name])

    possible = task.possible_types(table)
    usable = tuple(name for name in possible if is_usable(name))
    if not usable:
        raise ConstraintError(
            f"{task.task_id}: table {table.name!r} may only be {' or '.join(possible)}, which "
            + (
                "cost models without a step cost model cannot price; train one with: kedro run --pipeline pretrain"
                if problem.models.step is None
                else f"TorchRec cannot train for {table.num_embeddings} rows and {table.pooling} pooling, or which "
                "needs several hosts; allow column_wise or data_parallel"
            )
        )
    return usable
