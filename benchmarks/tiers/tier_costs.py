"""Costs of a plan with tiers in the lab: bytes of its collectives, their time, and memory with buffers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from neuroshard_pipeline.lab.device import modelled_device
from neuroshard_pipeline.lab.network_presets import network_preset
from neuroshard_pipeline.lab.phases import Work, run_phases
from neuroshard_pipeline.lab.step import step_params, step_phases
from neuroshard_pipeline.lab.step_groups import Job, grouped
from neuroshard_pipeline.search.memory import MemoryModel
from neuroshard_pipeline.search.volumes import plan_volumes
from neuroshard_pipeline.tables.table import Shard
from neuroshard_pipeline.tables.task import ShardingTask

#: Memory with the ids that a rank receives and the rows that it sends, which the limit of the tasks leaves out.
BUFFERS = MemoryModel(optimizer_state=True, input_buffers=True, output_buffers=True, reserve_fraction=0.0)
DEVICE, NETWORK = modelled_device("h100"), network_preset("h100-ib400")


@dataclass(frozen=True)
class Bytes:
    """Bytes per step of all ranks together.

    Attributes:
        exchanged: those of all-to-alls that cross hosts.
        reduced: those of reductions of gradients that cross hosts.
        inside: those of all collectives that stay inside a host.
    """

    exchanged: float
    reduced: float
    inside: float

    @property
    def across(self) -> float:
        """All bytes that cross hosts."""
        return self.exchanged + self.reduced


def bytes_of(task: ShardingTask, shards: Sequence[Shard], ranks: Sequence[int]) -> Bytes:
    """Expected bytes of a step (`search.volumes`)."""
    volumes = plan_volumes(task, shards, ranks)
    reduced = float(volumes.across["reductions"].sum())
    across, inside = (float(sum(of.sum() for of in kinds.values())) for kinds in (volumes.across, volumes.inside))
    return Bytes(across - reduced, reduced, inside)


def collectives_ms(task: ShardingTask, shards: Sequence[Shard], ranks: Sequence[int]) -> float:
    """The lab's time of all collectives of a step on the slowest rank, without the work and the waiting in between."""
    network = NETWORK.model_copy(update={"gpus_per_host": task.ranks_per_host})
    job = Job(task, DEVICE, network, step_params())
    phases = [phase for phase in step_phases(grouped(shards, ranks, task), job) if not isinstance(phase, Work)]
    parts, _ = run_phases(phases, task.world_size, network)
    return float(np.sum(list(parts.values()), axis=0).max())


def bytes_with_buffers(task: ShardingTask, shards: Sequence[Shard], ranks: Sequence[int]) -> float:
    """Memory of the fullest rank, including the ids and rows that ranks exchange."""
    of_rank = np.zeros(task.world_size)
    np.add.at(of_rank, list(ranks), [BUFFERS.shard_bytes(each, task) for each in shards])
    return float(of_rank.max())
