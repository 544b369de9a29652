"""A plan: its data (`plan_data`), in words, and in TorchRec's structures."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from neuroshard_pipeline.errors import PlanError
from neuroshard_pipeline.search.explain import explain_plan
from neuroshard_pipeline.search.plan_data import Placement, PlanCost, PlanData, RejectedChange
from neuroshard_pipeline.torchrec_plan.writer import ComputeDevice, Devices

if TYPE_CHECKING:
    from torch import nn

    from neuroshard_pipeline.torchrec_plan.structures import ShardingPlan

__all__ = ["Placement", "Plan", "PlanCost", "RejectedChange"]


class Plan(PlanData):
    """Shards that cover every table exactly once, and a rank for each, within the memory of the ranks.

    `PlanData` describes the attributes, and the conditions that raise `PlanError` if they are violated.
    """

    def to_torchrec(
        self,
        module: nn.Module,
        local_world_size: int | None = None,
        compute_device: ComputeDevice | None = None,
        leave_out: Collection[str] = (),
    ) -> ShardingPlan:
        """The plan as the `ShardingPlan` that `DistributedModelParallel(module, plan=...)` accepts.

        TorchRec must be installed. A table that is neither cut nor replicated is written as `column_wise` with a single
        shard (reason: see `torchrec_plan.writer`). If a table has shards of different widths on one rank, each rank's
        shards of the table are joined into one, because TorchRec needs equal widths (`writer.with_equal_widths`). A
        sharded collection orders its outputs by rank, so a model must select them by name.

        Args:
            module: the unsharded model, possibly on the meta device, with exactly the tables of the plan.
            local_world_size: ranks per host, or None for the number in the task.
            compute_device: kind of device that trains the tables; None for the plan's `compute_device`.
            leave_out: fully qualified names of modules that the plan does not cover.

        Raises:
            TorchRecMissingError: TorchRec is not installed.
            PlanError: plan and model differ in a table, its rows or its columns, `local_world_size` does not divide
                the world size, the device is neither given nor known, the plan has tiers, or TorchRec cannot train it
                (`torchrec_plan.writer`).
        """
        from neuroshard_pipeline.torchrec_plan.structures import sharding_plan

        devices = self.devices(local_world_size, compute_device)
        return sharding_plan(self.task, self.shards, self.ranks, module, devices, leave_out)

    def devices(self, local_world_size: int | None, compute_device: ComputeDevice | None) -> Devices:
        """The devices of the ranks; a `compute_device` of None stands for the plan's own.

        Raises:
            PlanError: see `to_torchrec`.
        """
        device = compute_device or self.compute_device
        if device is None:
            raise PlanError(
                f"{self.task.task_id}: the cost models of this plan do not say which device they were measured on; "
                "give compute_device='cuda' or 'cpu', the device that trains the tables"
            )
        local = self.task.local_world_size if local_world_size is None else local_world_size
        return Devices(self.task.world_size, local, device)

    def explain(self, rivals: Sequence[PlanData] = ()) -> str:
        """The plan in words: ten lines first, then tables by cost, groups of equal ranks, and assumptions.

        Args:
            rivals: plans of other sharders for the same task, with which the predicted cost is compared.
        """
        return explain_plan(self, rivals)
