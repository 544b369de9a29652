"""Parameter types that several pipelines share, such as `search`, `plan`, `replan`, `truth` and `train_check`."""

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from neuroshard_pipeline.parameters import Parameters, one_of
from neuroshard_pipeline.sharders.registry import SharderName, SharderNames
from neuroshard_pipeline.tables.task import COMM_BYTES, OPTIMIZERS

#: Upper limits that no training job of the coming years reaches; a larger value must be a mistake.
MAX_WORLD_SIZE = 4096
MAX_BATCH_SIZE = 2**30
MAX_MEMORY_GIB = 2.0**20


class ContestParams(Parameters):
    """The sharders that plan every sharding task.

    Attributes:
        sharders: names of sharders. Tables of `truth` and `train_check` keep this order; those of `search` show the
            cheapest first.
        seed: seed of sharders that draw random numbers.
    """

    sharders: SharderNames = Field(min_length=1)
    seed: int = Field(ge=0)


class TorchRecExportParams(Parameters):
    """The plans that are written for TorchRec.

    Attributes:
        sharder: the sharder whose plans the pipeline search writes.
        compute_device: type of the device on which the tables will be trained, or null for the one that the cost models
            were measured on.
    """

    sharder: SharderName
    compute_device: Literal["cuda", "cpu"] | None


class PlanParams(Parameters):
    """The task of `plan`, `replan` and `advise`; `replan` has no `seed`. Only `plan` uses `links`, `sharder`, `rivals`.

    Attributes:
        tables: path of a CSV, Parquet or JSON file of embedding tables.
        world_size: number of ranks of the training job, divided by `num_replica_groups`.
        batch_size: global batch size of one group of `world_size` ranks.
        memory_gib: memory for embeddings on every rank, GiB.
        host_memory_gib: host memory for embeddings per rank, GiB, or null if no table may be in host memory.
        optimizer: optimizer of the tables, one of `tables.task.OPTIMIZERS`.
        local_world_size: ranks per host; null if all ranks are on one host, or if the cost models of a modelled cluster
            give the number (`tables.task.on_hosts`).
        pipelines_input_dist: whether the trainer sends the ids of the next batch while it computes on this one.
        comm_precision: number format of rows and gradients on the links, a key of `tables.task.COMM_BYTES`.
        num_replica_groups: number of groups of `world_size` ranks that hold the same shards (`DMPCollection`).
        sync_interval: number of steps after which these groups average their weights and optimizer states.
        tiers: whether sequence tables may be cut into tiers by popularity (`torchrec_bridge.tiered` trains them).
        index_dedup: whether ranks send each id of a sequence table once (TorchRec's `use_index_dedup`).
        ids: path of a file of ids (`tables.id_batches`), in which pooling factors, reuse profiles and popularity curves
            are counted, or null for those of `tables`.
        num_batches: number of global batches of `ids` that are counted.
        constraints: path of a YAML or JSON file of constraints (`tables.constraint_file`), or null for none.
        links: path of a CSV file with the bandwidths between the ranks (`tables.read_bandwidths`), or null if all
            links are equal.
        sharder: one of `sharders.registry.SHARDERS`.
        seed: seed of sharders that draw random numbers.
        rivals: sharders whose predicted costs are stated beside that of the plan.
    """

    tables: str
    world_size: int = Field(ge=1, le=MAX_WORLD_SIZE)
    batch_size: int = Field(ge=1, le=MAX_BATCH_SIZE)
    memory_gib: float = Field(gt=0, le=MAX_MEMORY_GIB, allow_inf_nan=False)
    host_memory_gib: float | None = Field(gt=0, le=MAX_MEMORY_GIB, allow_inf_nan=False)
    optimizer: Annotated[str, one_of(OPTIMIZERS)]
    local_world_size: int | None = Field(ge=1)
    pipelines_input_dist: bool
    comm_precision: Annotated[str, one_of(COMM_BYTES)]
    num_replica_groups: int = Field(ge=1, le=MAX_WORLD_SIZE)
    sync_interval: PositiveInt
    tiers: bool
    index_dedup: bool
    ids: str | None
    num_batches: int = Field(ge=1)
    constraints: str | None
    links: str | None
    sharder: SharderName
    seed: int = Field(ge=0)
    rivals: SharderNames
