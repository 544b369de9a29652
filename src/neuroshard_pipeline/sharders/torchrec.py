"""TorchRec's own planner as a sharder. It imports TorchRec, an optional extra, on first use."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from neuroshard_pipeline.errors import DoesNotFitError, NeuroShardError
from neuroshard_pipeline.search.plan import Placement
from neuroshard_pipeline.search.problem import Problem
from neuroshard_pipeline.search.room import require_room
from neuroshard_pipeline.tables.table import COLUMN_GRANULARITY, Table

#: Largest number of ranks that TorchRec's planner is asked for: 10 tables on 1,000 ranks took it a minute.
_MOST_RANKS = 2**10


@dataclass(frozen=True)
class TorchRecSharder:
    """TorchRec's `EmbeddingShardingPlanner` for GPUs, table-wise and column-wise, under the memory limits of the task.

    TorchRec compares plans by its own cost formulas, unless `options` give another estimator. Two settings make
    its plans comparable with the plans of other sharders. Its storage estimates come from the memory model that all
    sharders use. `min_partition` allows it shards of fewer than 128 columns, which it never makes by default.
    TorchRec needs to be told the number of equal shards of a split table. The sharder therefore tries halves first,
    then quarters and so on, until a plan fits. The sharder is deterministic.

    Attributes:
        name: the name of the sharder.
        options: other arguments of `stock_planner.stock_plan`; without them, TorchRec's defaults apply.
    """

    name: str = "torchrec"
    options: Mapping[str, Any] = field(default_factory=dict)

    def shard(self, problem: Problem, rng: np.random.Generator) -> Placement:  # noqa: ARG002
        """The placement that TorchRec's planner estimates to be fastest.

        Raises:
            NeuroShardError: the task has constraints.
            TorchRecMissingError: the extra `torchrec` is not installed.
            DoesNotFitError: TorchRec found no plan within the memory limits.
        """
        task, memory = problem.task, problem.memory
        require_room(task, "TorchRec's planner", most_ranks=_MOST_RANKS)
        if task.constraints:
            raise NeuroShardError(
                f"{task.task_id}: the sharder {self.name!r} cannot respect constraints, because TorchRec's planner "
                "supports none of them; use another sharder"
            )
        from neuroshard_pipeline.torchrec_plan.stock_planner import PlannerError, stock_plan
        from neuroshard_pipeline.torchrec_plan.structures import read_sharding_plan

        def shard_bytes(table: Table, width: int) -> int:
            return memory.table_bytes(table, width, task)

        # TorchRec registers every table as a PyTorch module, and PyTorch refuses names such as `user.id` or `keys`.
        tables = {f"table_{index}": table for index, table in enumerate(task.tables)}
        widest = max(table.embedding_dim for table in task.tables)
        num_parts = 2
        while True:
            try:
                found = stock_plan(tables, task.batch_size, memory.limits(task), shard_bytes, num_parts, **self.options)
                return Placement(*read_sharding_plan(found, tables))
            except PlannerError as error:
                if COLUMN_GRANULARITY * num_parts >= widest:
                    message = " ".join(str(error).split())
                    raise DoesNotFitError(f"{task.task_id}: TorchRec's planner found no plan: {message}") from error
                num_parts *= 2
