"""Options of `NeuroShardPlanner`."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from neuroshard_pipeline.search.params import default_memory
from neuroshard_pipeline.sharders.base import SharderSettings
from neuroshard_pipeline.torchrec_plan.extra import require_torchrec

require_torchrec()
from torchrec.distributed.planner.types import StorageReservation  # noqa: E402
from torchrec.distributed.types import ShardingPlan  # noqa: E402


@dataclass(frozen=True)
class PlannerOptions:
    """Options of `NeuroShardPlanner` that are needed only in special cases.

    Attributes:
        sharder: one of `neuroshard_pipeline.SHARDERS`.
        settings: settings of the searches and of the memory model, or None for the defaults of `ns.shard` with a memory
            model that also counts the buffers of a batch, because a topology states the whole memory of a device.
        seed: seed of sharders that draw random numbers.
        storage_reservation: TorchRec's reservation, or None to count what is not for tables: all other weights and
            buffers, as replicas with gradients and optimizer states, `activation_bytes`, and the buffers at the peak of
            a step (`evaluation.peak_memory`).
        dense_optimizer: class of the optimizer of these weights, such as `AdamW`, unless another one is attached.
        activation_bytes: what the dense network keeps of a rank's samples for its backward pass
            (`train_check.sharding.saved_bytes`), which no module tells, and other needs, such as CUDA's context.
        leave_out: fully qualified names of modules that are planned elsewhere; their memory is counted
            (`unplanned_bytes`).
        left_out_plan: TorchRec's plan of the modules that are left out, or None.
        pipelines_input_dist: whether the trainer overlaps the exchange of ids with the previous batch, as TorchRec's
            `TrainPipelineSparseDist` does.
        comm_precision: number format of rows and gradients on the links, as in `ShardingTask`; None to read it from the
            sharders, whose `qcomm_codecs_registry` has it.
        num_replica_groups: number of groups of `topology.world_size` ranks that `DMPCollection` will train.
        sync_interval: number of steps between two calls of `DMPCollection.sync`.
        present: the plan that runs, or a stored one, in any form that `read_plan` reads. A document that was made for
            exactly this model, topology, models and options is the plan. From others, `ns.replan` starts.
        gib_per_rank: most GiB that a rank receives or sends on the way from `present`, if a plan was found that moves
            no more; None for no limit.
    """

    sharder: str = "neuroshard_plus"
    settings: SharderSettings | None = None
    seed: int = 0
    storage_reservation: StorageReservation | None = None
    dense_optimizer: str = "Adam"
    activation_bytes: int = 0
    leave_out: Collection[str] = ()
    left_out_plan: ShardingPlan | None = None
    pipelines_input_dist: bool = False
    comm_precision: str | None = None
    num_replica_groups: int = 1
    sync_interval: int = 1
    present: Any = None
    gib_per_rank: float | None = None

    @property
    def sharder_settings(self) -> SharderSettings:
        """The given settings, or the defaults of this planner."""
        counted = {"input_buffers": True, "output_buffers": True}
        return self.settings or SharderSettings(memory=default_memory().model_copy(update=counted))
