"""Sharding tasks: the tables, ranks and memory that a plan is made for."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from numbers import Integral

from neuroshard_pipeline.errors import TaskError
from neuroshard_pipeline.tables.constraints import MOST, UNCONSTRAINED, Constraints, constraint_problems, possible_types
from neuroshard_pipeline.tables.profile import profile_problems, with_profile
from neuroshard_pipeline.tables.table import ShardingType, Table, count_problems, scale_rows

OPTIMIZERS: tuple[str, ...] = ("sgd", "rowwise_adagrad", "adam")
DEFAULT_OPTIMIZER = "sgd"

#: Bytes of a float on the links, by `comm_precision`; the keys are TorchRec's names (`QCommsConfig`).
COMM_BYTES: dict[str, int] = {"fp32": 4, "fp16": 2, "bf16": 2}
DEFAULT_COMM_PRECISION = "fp32"

#: Upper limit of the memory of a rank. Bytes then fit into 64-bit integers.
MOST_BYTES = 2**60

#: Required columns of a task's file or frame that describe the task itself; all rows of a task have the same values.
TASK_ONLY_COLUMNS: tuple[str, ...] = ("task_id", "world_size", "batch_size", "memory_bytes")

#: Optional columns of files and frames, and the values that tasks have without them.
TASK_DEFAULTS: dict[str, str | int | bool | None] = {
    "optimizer": DEFAULT_OPTIMIZER,
    "local_world_size": None,
    "pipelines_input_dist": False,
    "host_memory_bytes": None,
    "comm_precision": DEFAULT_COMM_PRECISION,
    "num_replica_groups": 1,
    "sync_interval": 1,
    "tiers": False,
    "index_dedup": False,
}


@dataclass(frozen=True)
class ShardingTask:
    """Tables that are to be spread over the ranks of a training job.

    Attributes:
        tables: at least one table; names are unique.
        world_size: number of ranks (devices), at most `MOST`.
        batch_size: global batch size, in samples per iteration over all ranks, at most `MOST`.
        memory_bytes: memory for embeddings on every rank, or one number per rank.
        optimizer: one of `OPTIMIZERS`; its state takes part of the memory.
        task_id: name of the task in frames and errors.
        constraints: further conditions that plans must meet; none by default.
        local_world_size: ranks per host, a divisor of `world_size`; None if all ranks are on one host, or if the
            cost models of a modelled cluster give the number (`on_hosts`).
        pipelines_input_dist: whether the trainer sends the ids of the next batch while it computes on this one, as
            TorchRec's `TrainPipelineSparseDist` does. The input dist then costs no time.
        host_memory_bytes: host memory for embeddings per rank; None if no table may be in host memory. If the
            tables do not fit into GPU memory, `neuroshard_plus` with a step cost model moves some to host memory.
        comm_precision: number format of looked-up rows and their gradients in all_to_all, reduce_scatter and
            all_gather, a key of `COMM_BYTES`. The gradients of replicas are fp32 in any case.
        num_replica_groups: number of groups of `world_size` ranks in TorchRec's two-dimensional parallelism
            (`DMPCollection`). The task describes one group. All groups have the same plan; each has its own batches.
        sync_interval: number of steps after which the groups average their weights and optimizer states.
        tiers: whether sequence tables may be cut into tiers by popularity, which `torchrec_bridge.tiered` trains.
        index_dedup: whether a rank sends each distinct id of a sequence table once (`tables.dedup`), as TorchRec's
            `EmbeddingCollectionSharder(use_index_dedup=True)` does.

    Raises:
        TaskError: a value is impossible.
    """

    tables: Sequence[Table]
    world_size: int
    batch_size: int
    memory_bytes: int | Sequence[int]
    optimizer: str = DEFAULT_OPTIMIZER
    task_id: str = "task"
    constraints: Constraints = UNCONSTRAINED
    local_world_size: int | None = None
    pipelines_input_dist: bool = False
    host_memory_bytes: int | None = None
    comm_precision: str = DEFAULT_COMM_PRECISION
    num_replica_groups: int = 1
    sync_interval: int = 1
    tiers: bool = False
    index_dedup: bool = False

    def __repr__(self) -> str:
        return (
            f"ShardingTask({self.task_id!r}: {len(self.tables)} tables for {self.world_size} ranks, batch_size "
            f"{self.batch_size}, {self.optimizer})"
        )

    def __post_init__(self) -> None:
        if not isinstance(self.tables, Iterable):
            raise TaskError(f"{self.task_id}: tables must be a sequence of Table objects, not {self.tables!r:.60}")
        object.__setattr__(self, "tables", tuple(self.tables))
        if isinstance(self.memory_bytes, Sequence) and not isinstance(self.memory_bytes, str):
            limits = (int(limit) if isinstance(limit, Integral) else limit for limit in self.memory_bytes)
            object.__setattr__(self, "memory_bytes", tuple(limits))
        of_profiles = (problem for table in self.tables for problem in profile_problems(table, self.batch_size))
        for problem in chain(_type_problems(self), _size_problems(self), _choice_problems(self), of_profiles):
            raise TaskError(f"{self.task_id}: {problem}")

    @property
    def memory_limits(self) -> tuple[int, ...]:
        """Memory limit of every rank in bytes, `world_size` numbers."""
        if isinstance(self.memory_bytes, int):
            return (self.memory_bytes,) * self.world_size
        return tuple(self.memory_bytes)

    @property
    def ranks_per_host(self) -> int:
        """Ranks per host, which is `world_size` if all ranks are on one host."""
        return self.world_size if self.local_world_size is None else self.local_world_size

    @property
    def num_hosts(self) -> int:
        """Number of hosts; ranks fill hosts in order."""
        return self.world_size // self.ranks_per_host

    @property
    def comm_share(self) -> float:
        """Bytes of a float on the links, as a share of the 4 bytes of an fp32 number."""
        return COMM_BYTES[self.comm_precision] / COMM_BYTES[DEFAULT_COMM_PRECISION]

    def possible_types(self, table: Table) -> tuple[ShardingType, ...]:
        """The sharding types that one of the tables can have (`constraints.possible_types`)."""
        return possible_types(self.constraints, table, self.world_size, self.ranks_per_host)


def on_hosts(task: ShardingTask, ranks_per_host: int | None) -> ShardingTask:
    """The task on hosts of `ranks_per_host` ranks; the same task if it has its own `local_world_size`.

    It is also the same task if `ranks_per_host` is None, or if its ranks fit on one host or do not fill hosts.
    """
    fits = ranks_per_host is None or task.world_size <= ranks_per_host or task.world_size % ranks_per_host > 0
    return task if fits or task.local_world_size is not None else replace(task, local_world_size=ranks_per_host)


def task_from_tables(
    tables: Sequence[Table], world_size: int, batch_size: int, memory_bytes: int, row_scale: float, task_id: str
) -> ShardingTask:
    """The sharding task of a user's tables, with their numbers of rows divided by `row_scale`; 1 changes nothing.

    A table with a reuse profile keeps the shares of its reuse bins, and its unique rows are scaled, too
    (`table.scale_rows`). A table without a profile gets the default one for its scaled number of rows.

    Raises:
        TaskError: a value is impossible.
    """
    if not row_scale > 0:
        raise TaskError(f"{task_id}: row_scale {row_scale} must be above 0; 1 keeps the tables as they are")
    scaled = [with_profile(scale_rows(table, row_scale), batch_size) for table in tables]
    return ShardingTask(scaled, world_size, batch_size, memory_bytes, task_id=task_id)


def _type_problems(task: ShardingTask) -> Iterator[str]:
    """Descriptions of values of a wrong type, where no other check names it."""
    for field in ("pipelines_input_dist", "tiers", "index_dedup"):
        if not isinstance(getattr(task, field), bool):
            yield f"{field} {getattr(task, field)!r:.60} must be True or False"
    for field in ("task_id", "comm_precision"):
        if not isinstance(getattr(task, field), str):
            yield f"{field} {getattr(task, field)!r:.60} must be a string"
    if not isinstance(task.constraints, Constraints):
        yield f"constraints {task.constraints!r:.60} must be made with Constraints(...) or read_constraints(path)"


def _size_problems(task: ShardingTask) -> Iterator[str]:
    """Descriptions of impossible tables and numbers; each check assumes that the checks before it have passed."""
    for table in (each for each in task.tables if not isinstance(each, Table)):
        yield f"tables must hold Table objects, as read_tables returns them, but hold {table!r}"
    if not task.tables:
        yield "a sharding task needs at least one table"
    for name, count in Counter(table.name for table in task.tables).items():
        if count > 1:
            yield f"table names must be unique, but {name!r} occurs {count} times"
    for field in ("world_size", "batch_size", "num_replica_groups", "sync_interval"):
        yield from count_problems(field, getattr(task, field), MOST)
    limits = task.memory_bytes if isinstance(task.memory_bytes, tuple) else (task.memory_bytes,)
    for problem in (each for limit in limits for each in count_problems("memory_bytes", limit, MOST_BYTES)):
        yield f"{problem}; write 80 GiB as 80 * 2**30"
    if isinstance(task.memory_bytes, tuple) and len(limits) != task.world_size:
        yield f"memory_bytes has {len(limits)} numbers for {task.world_size} ranks; give one per rank"
    local = task.ranks_per_host
    if any(count_problems("local_world_size", local, task.world_size)) or task.world_size % local:
        yield f"local_world_size {local!r} must be a whole number that divides the world_size {task.world_size}"
    if task.host_memory_bytes is not None:
        yield from count_problems("host_memory_bytes", task.host_memory_bytes, MOST_BYTES)


def _choice_problems(task: ShardingTask) -> Iterator[str]:
    """Descriptions of unknown names, and of values that contradict each other."""
    for table in task.tables:
        if table.is_in_host_memory and task.host_memory_bytes is None:
            yield f"table {table.name!r} has compute_kernel {table.compute_kernel!r}; give the task host_memory_bytes"
    if task.optimizer not in OPTIMIZERS:
        yield f"optimizer {task.optimizer!r} is unknown; use one of {', '.join(OPTIMIZERS)}"
    if task.num_replica_groups > 1 and task.optimizer == "adam":
        yield "TorchRec's DMPCollection cannot average the state of adam; use another optimizer, or one replica group"
    if task.comm_precision not in COMM_BYTES:
        yield f"comm_precision {task.comm_precision!r} is unknown; use one of {', '.join(COMM_BYTES)}"
    if task.constraints:
        for problem in constraint_problems(task.constraints, task.tables, task.world_size, task.ranks_per_host):
            yield f"{task.constraints.where}{problem}"
