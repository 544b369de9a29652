"""The data of a plan: its shards and the rank of each, its costs, and the conditions that they fulfil."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import pandas as pd

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.search.cover import constraint_violations, cover_problems
from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.search.params import default_memory
from neuroshard_pipeline.tables.table import TABLE_DEFAULTS, Shard
from neuroshard_pipeline.tables.task import ShardingTask
from neuroshard_pipeline.tables.tiers import Cuts, cuts_of
from neuroshard_pipeline.torchrec_plan.writer import ComputeDevice

#: Columns of a plan as a frame.
FRAME_COLUMNS = (
    "task_id", "sharder", "table", "column_offset", "embedding_dim", "rank", "sharding_type", "row_offset", "num_rows",
)  # fmt: skip

#: Further columns of a plan as a frame. A column is present only if a table of the plan differs from `TABLE_DEFAULTS`.
KERNEL_COLUMNS = ("compute_kernel", "cache_load_factor")

#: The column with the kinds of tiers, present only if a plan has tiers; empty for tables without tiers.
TIER_COLUMN = "tier"

#: All columns that only some plans have as a frame.
OPTIONAL_COLUMNS = (*KERNEL_COLUMNS, TIER_COLUMN)


@dataclass(frozen=True)
class Placement:
    """The result of a sharder: the shards of all tables, and the rank of each. A `Plan` built from it is validated.

    Attributes:
        shards: every shard.
        ranks: `ranks[i]` is the rank of `shards[i]`.
        task: None for the problem's own task; otherwise a *variant* of it, in which the sharder has changed tables. The
            plan is then a plan of the variant.
    """

    shards: tuple[Shard, ...]
    ranks: tuple[int, ...]
    task: ShardingTask | None = None


@dataclass(frozen=True)
class PlanCost:
    """Cost of a plan in ms, one number per rank and part.

    The cost of a rank is the sum of its parts. The embedding cost is the cost of the most expensive rank [Zha2023] §2.
    The published cost has the first four parts. The other parts are empty if no step cost model has priced them.

    Attributes:
        forward_compute_ms: lookups.
        backward_compute_ms: backward pass of the lookups, with the optimizer.
        forward_comm_ms: all-to-all of looked-up rows or their sums.
        backward_comm_ms: all-to-all of their gradients.
        input_dist_ms: exchange of the ids, with the ranks' waits in it (`price.predicted_cost`); 0 if trainers hide it.
        reduction_ms: reduce_scatter, all_gather and all_reduce of tables that are not column-wise, and averages of
            replica groups; empty without any.
        module_ms: what TorchRec's module adds to bare lookups and collectives, such as copies, and the dense gradients
            of replicas with the optimizer that applies them.
    """

    forward_compute_ms: tuple[float, ...]
    backward_compute_ms: tuple[float, ...]
    forward_comm_ms: tuple[float, ...]
    backward_comm_ms: tuple[float, ...]
    input_dist_ms: tuple[float, ...] = ()
    reduction_ms: tuple[float, ...] = ()
    module_ms: tuple[float, ...] = ()

    @cached_property
    def compute_ms(self) -> tuple[float, ...]:
        """Forward plus backward compute cost of every rank."""
        return tuple(f + b for f, b in zip(self.forward_compute_ms, self.backward_compute_ms, strict=True))

    @cached_property
    def rank_ms(self) -> tuple[float, ...]:
        """The sum of all parts that are priced, for every rank."""
        further = (part for part in (self.input_dist_ms, self.reduction_ms, self.module_ms) if part)
        parts = zip(self.compute_ms, self.forward_comm_ms, self.backward_comm_ms, *further, strict=True)
        return tuple(sum(part) for part in parts)

    @property
    def embedding_cost_ms(self) -> float:
        """The embedding cost of the plan: the cost of its most expensive rank, which searches minimise."""
        return max(self.rank_ms)


@dataclass(frozen=True)
class RejectedChange:
    """One change that would turn a plan into a similar one, such as moving one shard to another rank.

    `text` says it in words; `hindrance` says why it is not allowed (memory or a constraint), and is empty if it is.
    """

    text: str
    cost_ms: float
    hindrance: str = ""


@dataclass(frozen=True)
class PlanData:
    """Shards that cover every table exactly once, and a rank for each, within the memory of the ranks; see `Plan`.

    Two types differ: a `data_parallel` table is whole on every rank; a `host_row_wise` table is covered on each host.

    Attributes:
        task: the sharding task.
        shards: every shard.
        ranks: `ranks[i]` is the rank of `shards[i]`.
        sharder: name of the sharder that made the plan.
        predicted: predicted cost, or None if no cost model has priced the plan.
        memory: memory model of a rank; by default the one of `parameters_search.yml`.
        interval_ms: per rank, lower and upper bound between which 90 % of measurements of its cost are expected;
            empty if no cost model has priced the plan. `==` ignores this attribute and the next four.
        rejected: the best single changes that the plan does not make; empty if none were sought or found.
        caveats: sentences about the predicted costs: what was modelled instead of measured, and what is extrapolated.
        compute_device: kind of device that the cost models were measured on, or None if they do not say.
        lookup_ms: predicted lookups of every shard, forward and backward, if it were alone on its rank; or empty.

    Raises:
        PlanError: rows or columns not covered or covered twice, an unknown table, an invalid rank number, shards that
            their sharding type does not allow, more shards on a rank than its memory holds, or a violated constraint.
    """

    task: ShardingTask
    shards: tuple[Shard, ...]
    ranks: tuple[int, ...]
    sharder: str
    predicted: PlanCost | None = None
    memory: MemoryModel = field(default_factory=default_memory)
    interval_ms: tuple[tuple[float, float], ...] = field(default=(), compare=False)
    rejected: tuple[RejectedChange, ...] = field(default=(), compare=False)
    caveats: tuple[str, ...] = field(default=(), compare=False)
    compute_device: ComputeDevice | None = field(default=None, compare=False)
    lookup_ms: tuple[float, ...] = field(default=(), compare=False, repr=False)

    def __repr__(self) -> str:
        cost = "unpriced" if self.predicted is None else f"{self.predicted.embedding_cost_ms:.4g} ms predicted"
        task = self.task
        return (
            f"Plan({task.task_id!r} by {self.sharder}: {len(task.tables)} tables in {len(self.shards)} shards on "
            f"{task.world_size} ranks, {cost})"
        )

    def __post_init__(self) -> None:
        if len(self.shards) != len(self.ranks):
            raise PlanError(f"{self.task.task_id}: {len(self.shards)} shards, but {len(self.ranks)} ranks for them")
        for rank in self.ranks:
            if not 0 <= rank < self.task.world_size:
                raise PlanError(f"{self.task.task_id}: rank {rank} lies outside 0..{self.task.world_size - 1}")
        for problem in cover_problems(self.task, self.shards, self.ranks):
            raise PlanError(f"{self.task.task_id}: {problem}")
        _check_memory(self)
        if self.task.constraints:
            for violation in constraint_violations(self.task, self.shards, self.ranks):
                raise PlanError(f"{self.task.task_id}: {violation}")

    @property
    def predicted_cost_ms(self) -> float | None:
        """Predicted embedding cost in ms."""
        return None if self.predicted is None else self.predicted.embedding_cost_ms

    @cached_property
    def shards_by_rank(self) -> tuple[tuple[Shard, ...], ...]:
        """The shards of every rank."""
        found: list[list[Shard]] = [[] for _ in range(self.task.world_size)]
        for shard, rank in zip(self.shards, self.ranks, strict=True):
            found[rank].append(shard)
        return tuple(tuple(shards) for shards in found)

    @cached_property
    def tiers(self) -> Mapping[str, Cuts]:
        """The cuts of all tables that are cut into tiers: name of the whole table → cuts."""
        return cuts_of(self.task)

    def shards_of(self, rank: int) -> tuple[Shard, ...]:
        """The shards on `rank`."""
        return self.shards_by_rank[rank]

    @cached_property
    def memory_bytes(self) -> tuple[int, ...]:
        """Per rank, the bytes that its shards need."""
        if any(table.is_in_host_memory for table in self.task.tables):
            return tuple(self.memory.rank_bytes(shards, self.task) for shards in self.shards_by_rank)
        return tuple(self.memory.bytes_of_ranks(self.shards, self.ranks, self.task).tolist())

    @cached_property
    def host_memory_bytes(self) -> tuple[int, ...]:
        """Per rank, the bytes of host memory that its shards need."""
        is_used = any(table.is_in_host_memory for table in self.task.tables)
        of_ranks = self.shards_by_rank if is_used else ((),) * self.task.world_size
        return tuple(sum(self.memory.host_bytes(shard, self.task) for shard in shards) for shards in of_ranks)

    @cached_property
    def dim_sums(self) -> tuple[int, ...]:
        """Per rank, the sum of the widths of its shards; replicas are left out, because nobody sends their outputs."""
        return tuple(
            sum(shard.embedding_dim for shard in shards if shard.sharding_type != "data_parallel")
            for shards in self.shards_by_rank
        )

    def to_frame(self) -> pd.DataFrame:
        """One row per shard and rank, with `FRAME_COLUMNS` and those of `OPTIONAL_COLUMNS` that the plan's tables need.

        A shard of a tier gets the name of the parent table; `row_offset` then counts the parent's rows by popularity.
        """
        values = (self.task.task_id, self.sharder)
        rows = []
        for s, rank in zip(self.shards, self.ranks, strict=True):
            name, first = (s.table.name, 0) if s.table.tier is None else (s.table.tier.parent, s.table.tier.row_offset)
            rectangle = (s.sharding_type, first + s.row_offset, s.num_rows)
            rows.append((*values, name, s.column_offset, s.embedding_dim, rank, *rectangle))
        kernels = {name: [getattr(shard.table, name) for shard in self.shards] for name in KERNEL_COLUMNS}
        given = {name: of for name, of in kernels.items() if set(of) != {TABLE_DEFAULTS[name]}}
        if self.tiers:
            given[TIER_COLUMN] = ["" if shard.table.tier is None else shard.table.tier.kind for shard in self.shards]
        return pd.DataFrame(rows, columns=list(FRAME_COLUMNS)).assign(**given)


def _check_memory(plan: PlanData) -> None:
    """Raise `PlanError` if a rank needs more memory than it has."""
    for rank, (used, limit) in enumerate(zip(plan.memory_bytes, plan.memory.limits(plan.task), strict=True)):
        if used > limit:
            raise PlanError(
                f"{plan.task.task_id}: rank {rank} needs {used} bytes for its shards but has {limit}: "
                f"{used - limit} bytes too many; move shards to other ranks or split tables"
            )
    for rank, used in enumerate(plan.host_memory_bytes):
        if used > (plan.task.host_memory_bytes or 0):
            raise PlanError(
                f"{plan.task.task_id}: rank {rank} needs {used} bytes of host memory for its shards but has "
                f"{plan.task.host_memory_bytes}; move shards to other ranks or raise host_memory_bytes"
            )
